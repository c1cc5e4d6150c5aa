"""Runs on different mixtures: shares of sources, and losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainrig.config import suggest_choice
from trainrig.errors import DataError
from trainrig.scaling.laws.runs_files import Csv, parse
from trainrig.scaling.mixture.mixture_draws import count_needed_runs

Array = NDArray[np.float64]
ROUNDING = 0.02  # largest difference of a line's sum from 1, because shares are written rounded


@dataclass(frozen=True, eq=False)
class MixtureRuns:
    """Runs with their shares, which sum to 1, and their losses in nats per token."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    shares: Array  # [R, S]
    losses: Array  # [R, T]
    left_out: int = 0  # number of runs that one of the files lacks, or whose losses are not finite

    def __len__(self) -> int:
        return len(self.shares)

    @classmethod
    def read(cls, mixtures: str, losses: str) -> "MixtureRuns":
        """Return the runs that both files have, in the order of the first file.

        Raises DataError if a file is malformed, or if the two have no run in common.
        """
        mixture_table = parse(mixtures)
        loss_table = parse(losses)
        key, sources = _split_columns(mixture_table)
        other_key, targets = _split_columns(loss_table)
        if key != other_key:
            raise DataError(
                f"{losses}: the first column is '{other_key}', but '{key}' in {mixtures}; name "
                "the runs in the first column of both files, with the same heading"
            )
        rows = _index_rows(mixture_table, key), _index_rows(loss_table, key)
        shares = np.stack([mixture_table.parse_numbers(name) for name in sources], axis=1)
        values = np.stack([loss_table.parse_numbers(name) for name in targets], axis=1)
        known = [
            run for run in rows[0] if run in rows[1] and np.isfinite(values[rows[1][run]]).all()
        ]
        if not known:
            raise DataError(
                f"{losses} has no complete line of losses for any run of {mixtures}; the two "
                f"files are joined by the column '{key}'"
            )
        _check_shares(mixture_table, shares)
        chosen = shares[[rows[0][run] for run in known]]
        return cls(
            sources=sources,
            targets=targets,
            shares=chosen / chosen.sum(axis=1, keepdims=True),
            losses=values[[rows[1][run] for run in known]],
            left_out=len(rows[0].keys() | rows[1].keys()) - len(known),
        )

    def select_targets(self, names: Sequence[str]) -> "MixtureRuns":
        """Return the same runs with only the targets `names`, or unchanged if `names` is empty.

        Raises DataError if there is no target of such a name.
        """
        if not names:
            return self
        for name in names:
            if name not in self.targets:
                raise DataError(f"no target '{name}'{suggest_choice(name, self.targets)}")
        chosen = [self.targets.index(name) for name in names]
        return replace(self, targets=tuple(names), losses=self.losses[:, chosen])

    def weigh_targets(self, weights: Mapping[str, float]) -> "MixtureRuns":
        """Return the same runs, with losses whose mean is the mean weighted by `weights`.

        `weights` has a weight for each target and sums to 1. Each loss is multiplied by its weight
        and by the number of targets; a regression of the mean loss then needs no weights.
        """
        factors = np.array([weights[target] for target in self.targets]) * len(self.targets)
        return replace(self, losses=self.losses * factors)

    def refuse_too_few(self, path: str) -> None:
        """Raise DataError if there are too few runs for a regression on this number of sources."""
        needed = count_needed_runs(len(self.sources))
        if len(self) < needed:
            raise DataError(
                f"{path}: {len(self)} runs of {len(self.sources)} sources; a regression needs "
                f"{needed} or more, so train {needed - len(self)} more (RegMix: 512 for 17 sources)"
            )


def _split_columns(table: Csv) -> tuple[str, tuple[str, ...]]:
    key, *names = table.cells
    if len(names) < 1:
        raise DataError(
            f"{table.path}: only one column; the first names the run, and the others must hold data"
        )
    return key, tuple(names)


def _index_rows(table: Csv, key: str) -> dict[str, int]:
    """Return the row of each run, keyed by the run's name."""
    rows: dict[str, int] = {}
    for row, name in enumerate(table.cells[key]):
        if name in rows:
            line = table.lines[row]
            raise DataError(f"{table.path}:{line}: a second line of run '{name}'; keep only one")
        rows[name] = row
    return rows


def _check_shares(table: Csv, shares: Array) -> None:
    wrong = ~(np.isfinite(shares) & (shares >= 0)).all(axis=1)
    if wrong.any():
        line = table.lines[int(np.argmax(wrong))]
        raise DataError(
            f"{table.path}:{line}: a share is below 0 or missing; write shares from 0 to 1"
        )
    sums = shares.sum(axis=1)
    off = np.abs(sums - 1) > ROUNDING
    if off.any():
        row = int(np.argmax(off))
        raise DataError(
            f"{table.path}:{table.lines[row]}: the shares sum to {sums[row]:.4g}, not to 1; after "
            "the run's name each column is the share of a source"
        )
