"""Gradients added up in one order, whoever computed them."""
