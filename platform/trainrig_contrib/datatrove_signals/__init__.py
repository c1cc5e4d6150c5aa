"""Signals that datatrove's filters measure, computed as datatrove computes them."""
