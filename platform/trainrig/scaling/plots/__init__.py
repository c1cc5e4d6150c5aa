"""What scaling laws are read from: data and an Axes in, nothing fitted."""
