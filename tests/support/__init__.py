"""Helpers shared by tests, imported as `support`; the package never imports them."""
