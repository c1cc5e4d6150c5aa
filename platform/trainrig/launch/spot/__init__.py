"""Spot machines: on a preemption notice, the machine is drained and the run moves in time."""
