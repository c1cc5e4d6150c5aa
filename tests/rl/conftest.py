"""A tiny model and prompts of letters, whose correct answer is the letter e."""

from support.rollout_fixtures import make_run, problems

__all__ = ["make_run", "problems"]
