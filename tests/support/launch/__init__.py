"""Helpers of the tests of submitted runs and clusters."""
