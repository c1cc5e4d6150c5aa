"""The memory that tuning takes of a device, reckoned before it starts from a run and its rows."""
