"""Rehearsal of a run under losses of spot machines, on this machine."""
