"""Low-rank adapters beside frozen weights: what they are told, and the layers that have them."""
