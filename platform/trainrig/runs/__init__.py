"""Inspection of training runs from outside: lists, live reports, traces and weight averages."""
