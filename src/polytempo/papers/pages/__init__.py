"""The pages of results: what is made of claims and records, without running anything."""
