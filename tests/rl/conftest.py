"""A tiny model and prompts of letters, whose correct answer is the letter e."""

from support.fixtures import make_run as make_pretraining
from support.rollout_fixtures import make_run, problems
from support.tuning_fixtures import bench, encoder, fresh

__all__ = ["bench", "encoder", "fresh", "make_pretraining", "make_run", "problems"]
