"""Fixtures of tuning, for runs that started from another run."""

from support.tuning_fixtures import encode_rows

__all__ = ["encode_rows"]
