"""For all tests."""

from hypothesis import settings

settings.register_profile("untimed")  # no test is timed: machines are busy, and first calls compile
settings.load_profile("untimed")
