"""Memory that layers keep for the backward pass: estimates, recomputation and offload to the host."""
