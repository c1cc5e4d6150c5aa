"""Reward models, asked: what each row of a file is worth."""
