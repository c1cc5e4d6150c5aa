"""Comparison of a model before and after tuning: its answers, and what it forgot."""
