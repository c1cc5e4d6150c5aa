"""Ways to compute attention, as operators that torch knows by name."""
