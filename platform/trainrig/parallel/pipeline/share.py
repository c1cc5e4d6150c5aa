"""Which parameters a pipeline stage counts as its own; all stages together count each one once."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

COPIED = "embedding"  # the module that the last stage copies for a tied head


@dataclass(frozen=True)
class StageShare:
    """Parameters of the whole model, and which of them one stage counts."""

    # Number of rows of each trained parameter of the whole model, by name, in the order of a single
    # process.
    whole: Mapping[str, int]
    copies: bool = False  # True if this stage has a copy of the first stage's embedding

    def counts(self, name: str) -> bool:
        """Return whether this stage counts its parameter `name`.

        Also accepts names of saved state: `model.NAME` and `optimizer.state.NAME.…`.
        """
        return not (self.copies and f".{COPIED}." in f".{name}.")

    def find_firsts(self, names: Iterable[str]) -> list[int | None]:
        """Return the row of the whole model at which each of this stage's parameters begins.

        None for parameters that another stage counts.
        """
        begins = itertools.accumulate(self.whole.values(), initial=0)
        first = dict(zip(self.whole, begins, strict=False))
        return [first[name] if self.counts(name) else None for name in names]
