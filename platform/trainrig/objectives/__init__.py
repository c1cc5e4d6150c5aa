"""Training objectives: the losses that training minimizes. See objective_kinds.py."""
