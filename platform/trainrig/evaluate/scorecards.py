"""Scored rows of an evaluation, the scores of a task, and the scorecard that holds them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate import score_statistics

ROWS = "rows"  # folder of scored rows, below the stage's: ROWS/TASK/00000.jsonl
Rows = Sequence[Mapping[str, Any]]


def read_scored(folder: str, task: str) -> list[dict[str, Any]]:
    """Return the scored rows of `task` in an evaluation's folder, in the order of the task's rows.

    Raises DataError if there are none.
    """
    rows = []
    paths = storage.list_files(storage.join(folder, ROWS, task), ".jsonl")
    for data in storage.read_files(paths):
        for line in data.decode("utf-8", "surrogatepass").split("\n"):
            if line:
                rows.append(json.loads(line))
    if not rows:
        raise DataError(
            f"{folder}: the folder has no scored rows of task '{task}'; run `trainrig evaluate` "
            "again"
        )
    return rows


class MetricScore(BaseModel):
    """One metric of one task."""

    model_config = ConfigDict(frozen=True)

    value: float
    error: float | None  # standard error
    low: float | None  # lower bound of the 95% interval
    high: float | None  # upper bound of the 95% interval


class RowsSeen(BaseModel):
    """Contamination of a task by the training corpus, and the score without contaminated rows."""

    model_config = ConfigDict(frozen=True)

    looked_for: int  # rows long enough to be searched for
    seen: int  # rows that the corpus contains
    without: MetricScore | None  # headline score of the other rows; None: no row was seen, or all


class TaskScore(BaseModel):
    """The scores of one task in a scorecard."""

    model_config = ConfigDict(frozen=True)

    metric: str  # name of the headline metric
    metrics: dict[str, MetricScore]
    rows: int
    groups: int  # independent samples among the rows
    few_shot: int
    chat: bool
    truncated: int = 0  # rows whose prompt lost tokens, from the left, to fit
    chance: float | None = None  # score of random guessing; None: the task has no choices
    # Bounds of 99% of the scores that the same answers get with shuffled labels.
    shuffled: tuple[float, float] | None = None
    higher_is_better: bool = True
    contamination: RowsSeen | None = None

    @property
    def headline(self) -> MetricScore:
        """The score of the headline metric."""
        return self.metrics[self.metric]


def score_task(rows: Rows, few_shot: int, chat: bool) -> TaskScore:
    """Compute the scores of a task from its scored rows, of which there must be at least one."""
    metric = next(iter(rows[0]["scores"]))
    groups = _list_groups(rows)
    metrics = {
        name: score_statistics.estimate([row["scores"][name] for row in rows], groups=groups)
        for name in rows[0]["scores"]
    }
    if metric == "bits_per_byte":
        bits = [-row["log_likelihood"] / math.log(2) for row in rows]
        metrics["bits_per_byte"] = score_statistics.estimate(
            bits, [row["bytes"] for row in rows], groups
        )
    found = {name: _convert_to_score(estimated) for name, estimated in metrics.items()}
    found |= _compute_perplexities(rows, groups)
    several = all("chosen" in row for row in rows)
    return TaskScore(
        metric=metric,
        metrics=found,
        rows=len(rows),
        groups=metrics[metric].groups,
        few_shot=few_shot,
        chat=chat,
        truncated=sum(bool(row.get("truncated")) for row in rows),
        chance=sum(1 / len(row["choices"]) for row in rows) / len(rows) if several else None,
        shuffled=_estimate_shuffled(rows, metric) if several else None,
        higher_is_better=metric != "bits_per_byte",
    )


def compute_headline_score(rows: Rows, metric: str) -> MetricScore:
    """Return the mean of one metric over `rows`, with its error."""
    return _convert_to_score(
        score_statistics.estimate(
            [row["scores"][metric] for row in rows], groups=_list_groups(rows)
        )
    )


def _list_groups(rows: Rows) -> list[str | None] | None:
    groups = [row.get("group") for row in rows]
    return None if all(group is None for group in groups) else groups


def _convert_to_score(found: score_statistics.Estimate) -> MetricScore:
    low, high = found.interval or (None, None)
    if found.error == 0 and found.value in (0, 1):  # equal rows have no variance
        reach = score_statistics.bound_unseen_share(found.groups)
        low, high = (0.0, reach) if found.value == 0 else (1 - reach, 1.0)
    return MetricScore(value=found.value, error=found.error, low=low, high=high)


def _compute_perplexities(rows: Rows, groups: list[str | None] | None) -> dict[str, MetricScore]:
    """Return perplexities: the exponential of the mean loss.

    The mean is over texts; for rows with `bytes` it is over tokens, bytes and words. Returns {} for
    rows without a log-likelihood.
    """
    if any("log_likelihood" not in row for row in rows):
        return {}
    nats = [-row["log_likelihood"] for row in rows]
    weights: dict[str, list[float] | None] = {"perplexity": None}
    if all("bytes" in row for row in rows):
        weights = {
            "perplexity": [row["tokens"] for row in rows],
            "byte_perplexity": [row["bytes"] for row in rows],
            "word_perplexity": [row["words"] for row in rows],
        }
    found = {}
    for name, counts in weights.items():
        loss = _convert_to_score(score_statistics.estimate(nats, counts, groups))
        error = None if loss.error is None else _exp(loss.value) * loss.error
        low, high = (None if b is None else _exp(b) for b in (loss.low, loss.high))
        found[name] = MetricScore(value=_exp(loss.value), error=error, low=low, high=high)
    return found


def _exp(nats: float) -> float:
    """Return e to the power of `nats`, limited to about 1e304 so that it is finite in JSON."""
    return math.exp(min(nats, 700.0))


def _estimate_shuffled(rows: Rows, metric: str) -> tuple[float, float]:
    return score_statistics.estimate_shuffled_band(
        [row["chosen"][metric] for row in rows],
        [row["gold"] for row in rows],
        [len(row["choices"]) for row in rows],
    )


SCORECARD = "scorecard.json"


@dataclass(frozen=True)
class SourceScore:
    """The scores of held-out text from one source."""

    loss: float  # nats per token
    perplexity: float  # e to the loss
    bits_per_byte: float  # bits per byte of text, without special tokens
    tokens: int
    bytes: int
    accuracy: float | None = None  # encoders: share of masked tokens predicted as the likeliest


class Scorecard(BaseModel):
    """The scores of one checkpoint, as `evaluate` writes them."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str = ""
    step: int
    scores: dict[str, SourceScore]  # scores of held-out text by source
    tasks: dict[str, TaskScore] = {}
    # Training operations of the checkpoint's run, by the 6ND estimate; None: the checkpoint does
    # not record its training tokens.
    training_flops: float | None = None


def read_scorecard(folder: str) -> Scorecard:
    """Read the scorecard in `folder`. Raises DataError if `evaluate` did not write the folder."""
    manifest.read_input(folder, "evaluate")
    return Scorecard.model_validate_json(manifest.read_file(folder, SCORECARD))
