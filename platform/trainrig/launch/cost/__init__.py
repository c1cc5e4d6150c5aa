"""Cost of a run: metered nodes, money and time spent."""
