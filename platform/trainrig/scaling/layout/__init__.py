"""Search for the fastest parallel layout of a run on given devices, before any is rented."""
