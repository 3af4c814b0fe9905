"""What several tests share: builders, small worlds, services and clients inside a test."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
"""The repository."""
