"""Sweeps: training of many small models on Ray Tune, and the table of their losses."""
