"""Attention kernels, wrapped as custom torch operators, and the choice between them."""
