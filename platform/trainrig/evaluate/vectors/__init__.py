"""What the vectors of a model are worth: a linear probe, and retrieval by meaning."""
