"""Memory that layers keep for the backward pass: estimates, recomputation and host offload."""
