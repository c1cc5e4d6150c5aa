"""Completions to score."""

from trainrig.posttrain.rewards.reward_contract import Completion


def completion(text: str, prompt: str = "p", finished: bool = True, **row: object) -> Completion:
    """Return a completion of `text`, with one token for each character."""
    return Completion(prompt, text, tuple(text.encode()), finished, row)
