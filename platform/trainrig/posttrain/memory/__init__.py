"""Estimates of the device memory that a tuning run needs, computed before it starts."""
