"""Plans of layouts: which way to lay a run out over devices is fastest, before any is rented."""
