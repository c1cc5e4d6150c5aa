"""What a rank and the Ray worker that keeps it say to each other, besides beats.

Imports nothing: the keeper's process has no torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a rank is, and who keeps it."""

    rank: int
    world: int
    device: int  # its GPU, among those that it can see
    meeting: str  # the URL at which the ranks meet
    node: str  # as the supervisor calls it
    keeper: int  # pid


@dataclass(frozen=True)
class Raised:
    """What a rank ended with."""

    error: bytes  # pickled by itself: its keeper need not import what it is made of
    line: str  # what it says


@dataclass(frozen=True)
class Done:
    """A rank came to its end."""
