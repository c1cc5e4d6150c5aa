"""Checks of cluster files before anything is rented: mistakes, cost and quotas."""
