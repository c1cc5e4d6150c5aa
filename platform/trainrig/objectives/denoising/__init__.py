"""Objectives that are trained on other rows than next-token prediction: one file each."""
