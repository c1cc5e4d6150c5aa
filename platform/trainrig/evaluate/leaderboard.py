"""`trainrig leaderboard`: all scorecards of a folder as one table."""

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
    """One evaluation of the table."""

    folder: str  # below the one that was named
    card: Scorecard
    mean: float | None  # of the headline scores of all tasks that every evaluation has


@dataclass(frozen=True)
class Leaderboard:
    """Evaluations, the best first."""

    tasks: tuple[str, ...]  # of any of them
    shared: tuple[str, ...]  # that all have and whose scores are shares: those of the mean
    rows: tuple[RankedCard, ...]

    def sort_by_flops(self) -> dict[str, list[tuple[float, MetricScore]]]:
        """The scores of each task by the operations of training, the fewest first; of tasks with
        scores at two or more."""
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

    def as_json(self) -> dict[str, Any]:
        """The table as plain JSON."""
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
    """All finished evaluations at or below `folder`. Raises DataError if there is none."""
    found = []
    for path in storage.list_files(folder, f"/{SCORECARD}"):
        place = path.removesuffix(f"/{SCORECARD}")
        if not storage.exists(storage.join(place, manifest.MANIFEST)):
            log.warning("%s: not finished; `trainrig evaluate` goes on with it", place)
            continue
        name = place.removeprefix(folder.rstrip("/")).strip("/") or place
        found.append((name, read_scorecard(place)))
    if not found:
        raise DataError(f"{folder}: no scorecard in it; `trainrig evaluate` makes them")
    cards = [card for _, card in found]
    tasks = list(dict.fromkeys(name for card in cards for name in card.tasks))
    shared = [
        name
        for name in tasks
        if all(name in card.tasks and card.tasks[name].higher_is_better for card in cards)
    ]
    rows = [RankedCard(name, card, _compute_mean(card, shared)) for name, card in found]
    # Without a task in common, by bits per byte: the fewest first.
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
