"""Runs on different mixtures (shares of sources, and losses), and DoReMi's weights from losses.

In DoReMi (Xie et al. 2023, arXiv:2305.10429, algorithm 1) a proxy model is trained while the
weights move towards the domains on which its loss exceeds that of a reference model the most. The
weights for the large model are the mean over the proxy's steps.

Shapes of DoReMi: K domains, M steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainrig.config import Field, Settings, suggest_choice
from trainrig.errors import DataError
from trainrig.scaling.laws.runs_files import Csv, parse

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

    def refuse_too_few(self, path: str) -> None:
        """Raise DataError if there are too few runs for a regression on this number of sources."""
        needed = 2 * (len(self.sources) + 1)  # twice the number of constants of a mixing law
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


class DoReMi(Settings):
    """Weight update of algorithm 1, with the paper's constants."""

    rate: float = Field(1.0, gt=0)  # step size eta of the update, per nat of excess loss
    # smoothing c: the share of the weights that is spread evenly over all domains
    smoothing: float = Field(1e-3, ge=0, le=1)

    def step(self, weights: ArrayLike, excess: ArrayLike) -> Array:
        """Return the weights [K] after one update, which sum to 1.

        `excess` [K] is the loss of the proxy minus that of the reference for each domain, in nats
        per token. A domain on which the proxy is better counts as 0.
        """
        now = np.asarray(weights, np.float64)
        behind = np.asarray(excess, np.float64)
        if not np.isfinite(behind).all():
            raise DataError(f"DoReMi: an excess loss is not a finite number: {behind.tolist()}")
        behind = np.maximum(behind, 0)
        # the shift cancels and avoids overflow
        raised = now * np.exp(self.rate * (behind - behind.max()))
        return np.asarray((1 - self.smoothing) * raised / raised.sum() + self.smoothing / len(now))

    def compute_path(self, excesses: ArrayLike, start: ArrayLike | None = None) -> Array:
        """Return the weights after each update, [M, K].

        `excesses` [M, K] are the excess losses at each step. The path begins at `start`, or at
        equal weights.
        """
        rows = np.asarray(excesses, np.float64)
        weights = (
            np.full(rows.shape[1], 1 / rows.shape[1])
            if start is None
            else np.asarray(start, np.float64) / np.sum(start)
        )
        path = []
        for excess in rows:
            weights = self.step(weights, excess)
            path.append(weights)
        return np.stack(path)

    def compute_weights(self, excesses: ArrayLike, start: ArrayLike | None = None) -> Array:
        """Return the weights for the large model, [K]: the mean of the path."""
        return np.asarray(self.compute_path(excesses, start).mean(axis=0))


def compute_excess(
    proxy: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return, for each domain, the mean of max(proxy - reference, 0) over the same tokens.

    Losses are clipped for each token, as in algorithm 1: a token that the proxy predicts better
    does not make up for another. Raises DataError if the two lists of a domain differ in length, or
    are empty.
    """
    excess = {}
    for domain, losses in proxy.items():
        other = reference.get(domain, ())
        if len(losses) != len(other) or not len(losses):
            raise DataError(
                f"DoReMi: domain '{domain}' has {len(losses)} losses of the proxy and {len(other)} "
                "of the reference; measure both on the same tokens"
            )
        excess[domain] = float(np.maximum(np.subtract(losses, other), 0).mean())
    return excess
