"""Planning of a training run from a scaling law and a budget, up to its run file."""
