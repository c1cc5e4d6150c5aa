"""What of a model the rank of a stage counts as its own: all stages together count all, once."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

COPIED = "embedding"  # what a tied head of the last stage has a copy of


@dataclass(frozen=True)
class StageShare:
    """Of one stage of a pipeline."""

    # Rows of each trained parameter of the whole model by name, in the order in which one process
    # would have them.
    whole: Mapping[str, int]
    copies: bool = False  # whether this stage has a copy of the first's embedding

    def counts(self, name: str) -> bool:
        """Whether this stage counts its parameter `name`, or what is kept of it, as `model.NAME`
        and `optimizer.state.NAME.…` are."""
        return not (self.copies and f".{COPIED}." in f".{name}.")

    def find_firsts(self, names: Iterable[str]) -> list[int | None]:
        """The row of the whole model that each of this stage's parameters begins at; None: another
        stage counts it."""
        begins = itertools.accumulate(self.whole.values(), initial=0)
        first = dict(zip(self.whole, begins, strict=False))
        return [first[name] if self.counts(name) else None for name in names]
