"""`trainrig leaderboard`: ranking of all scorecards in a folder."""

import logging
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate.scores.card import SCORECARD, Scorecard, read_scorecard
from trainrig.evaluate.scores.task_score import MetricScore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankedCard:
    """One evaluation of the leaderboard."""

    folder: str  # path relative to the leaderboard's folder
    card: Scorecard
    mean: float | None  # mean headline score over the shared tasks; None: there are none


@dataclass(frozen=True)
class Leaderboard:
    """Ranked evaluations, the best first."""

    tasks: tuple[str, ...]  # tasks of any evaluation
    shared: tuple[str, ...]  # tasks of the mean: all evaluations have them, higher is better
    rows: tuple[RankedCard, ...]

    def sort_by_flops(self) -> dict[str, list[tuple[float, MetricScore]]]:
        """Return (training operations, headline score) pairs by task, with the fewest first.

        Tasks with fewer than two different numbers of operations are left out.
        """
        found = {}
        for name in self.tasks:
            points = [
                (row.card.training_flops, row.card.tasks[name].headline)
                for row in self.rows
                if row.card.training_flops and name in row.card.tasks
            ]
            if len({flops for flops, _ in points}) > 1:
                found[name] = sorted(points, key=lambda point: point[0])
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the leaderboard as plain JSON."""
        return {
            "shared": list(self.shared),
            "evaluations": [
                {
                    "folder": row.folder,
                    "checkpoint": row.card.checkpoint,
                    "step": row.card.step,
                    "mean": row.mean,
                    "training_flops": row.card.training_flops,
                    "tasks": {
                        name: {"metric": s.metric} | s.headline.model_dump()
                        for name, s in row.card.tasks.items()
                    },
                    "bits_per_byte": {n: s.bits_per_byte for n, s in row.card.scores.items()},
                }
                for row in self.rows
            ],
        }


def read_leaderboard(folder: str) -> Leaderboard:
    """Rank all finished evaluations at or below `folder`. Raises DataError if there is none."""
    found = []
    for path in storage.list_files(folder, f"/{SCORECARD}"):
        place = path.removesuffix(f"/{SCORECARD}")
        if not storage.exists(storage.join(place, manifest.MANIFEST)):
            log.warning(
                "%s: this evaluation is not finished; resume it with `trainrig evaluate`", place
            )
            continue
        name = place.removeprefix(folder.rstrip("/")).strip("/") or place
        found.append((name, read_scorecard(place)))
    if not found:
        raise DataError(
            f"{folder}: the folder has no finished evaluation; name one that `trainrig evaluate` "
            "wrote to"
        )
    cards = [card for _, card in found]
    tasks = list(dict.fromkeys(name for card in cards for name in card.tasks))
    shared = [
        name
        for name in tasks
        if all(name in card.tasks and card.tasks[name].higher_is_better for card in cards)
    ]
    rows = [RankedCard(name, card, _compute_mean(card, shared)) for name, card in found]
    # Evaluations without a shared task are ranked by bits per byte, the lowest first.
    rows.sort(key=lambda row: (-(row.mean or 0.0), _average_bits(row.card), row.folder))
    return Leaderboard(tuple(tasks), tuple(shared), tuple(rows))


def _compute_mean(card: Scorecard, shared: list[str]) -> float | None:
    if not shared:
        return None
    return sum(card.tasks[name].headline.value for name in shared) / len(shared)


def _average_bits(card: Scorecard) -> float:
    if not card.scores:
        return float("inf")
    return sum(score.bits_per_byte for score in card.scores.values()) / len(card.scores)
