"""Scaling laws: tables of runs in, fitted laws with intervals out."""
