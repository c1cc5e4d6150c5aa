"""Cluster files, before anything is rented: what is wrong, what it costs, what it needs."""
