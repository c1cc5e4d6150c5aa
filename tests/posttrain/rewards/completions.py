"""Completions to score."""

from trainrig.posttrain.rewards.contract import Completion


def completion(text: str, prompt: str = "p", finished: bool = True, **row: object) -> Completion:
    """What was said, a token for each character."""
    return Completion(prompt, text, tuple(text.encode()), finished, row)
