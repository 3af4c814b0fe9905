"""Packages that Polytempo works without. `make test` installs some of them, `make test-extras` all."""

import os
from importlib import import_module
from types import ModuleType

import pytest

REQUIRED = "POLYTEMPO_TEST_EXTRAS"
"""Set by `make test-extras`: nothing is skipped."""


def extra(module: str) -> ModuleType:
    """The module. Where it is not installed the test is skipped, or fails if extras are required."""
    try:
        return import_module(module)
    except ImportError:
        if REQUIRED in os.environ:
            raise
        pytest.skip(f"{module} is not installed: make test-extras installs it")
