"""Which row is learnt from when."""
