"""Alarm rules of all training runs: signs of trouble in the metrics, with advice on what to do.

Each rule is a pure function of the lines that the run has written. Runs that sample completions
have rules of their own (train/run/policy_alarms.py).
"""

import itertools
import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.report.number_formats import format_bytes
from trainrig.train.run.planned_loss import Prediction

Line = Mapping[str, Any]

_EXPERT = re.compile(r"experts/\d+/\d+/load")
NOW = 50  # newest updates, which are compared with those before them
BEFORE = 200
NORM_RISE = 2.0  # factor between the medians of the gradient norm
FLAT_LOSS = 1.02  # factor up to which the loss counts as unchanged
RISING = 3  # consecutive increases of the held-out loss
DEAD_SHARE = 1e-6  # share of the median layer's gradient norm
DEAD_LOAD = 0.01  # tokens of an expert, as a share of its even share
DEAD_LOOKS = 3  # consecutive measurements below that
SLOWER = 0.7  # share of the best throughput with the same number of workers
SLOW_RANK = 0.3  # excess time over the median rank, as a share
SLOW_LOOKS = 3  # consecutive measurements with the same slowest rank
# factor on the upper end of the prediction, or on its value if it has no interval
ABOVE_PREDICTION = 1.05
WORTH_OF_REPEATS = 15.387756  # epochs: R_D* of Muennighoff et al. 2023 (arXiv:2305.16264)
EPOCHS = 4.0  # epochs up to which repeated data are nearly as good as new (ibid., section 1)


@dataclass(frozen=True)
class Alarm:
    """Problem of a run, and what to do about it."""

    name: str
    what: str
    action: str

    def __str__(self) -> str:
        return f"{self.what}. {self.action}"


class AlarmRules:
    """The alarm rules: they read a run's lines one after another, and tell which alarms hold."""

    def __init__(self, steps: int, prediction: Prediction | None = None) -> None:
        self._steps = steps
        self._prediction = prediction
        self._updates: deque[Line] = deque(maxlen=NOW + BEFORE)
        self._held_out: deque[Line] = deque(maxlen=RISING + 1)
        self._layers: Line = {}
        self._experts: deque[Line] = deque(maxlen=DEAD_LOOKS)
        self._slowest: deque[Line] = deque(maxlen=SLOW_LOOKS)
        self._best: dict[int, float] = {}  # highest tokens per second, by number of workers
        self._checkpoint = 0  # bytes of the newest checkpoint

    def hear(self, line: Line) -> None:
        """Record a line of metrics or an event."""
        if line.get("event") == "checkpoint":
            self._checkpoint = line["bytes"]
        elif "train/loss" in line:
            self._updates.append(line)
            if any(name.startswith("layers/") for name in line):
                self._layers = line
            loads = {name: load for name, load in line.items() if _EXPERT.fullmatch(name)}
            if loads:
                self._experts.append(loads)
            if "cluster/slowest_rank" in line:
                self._slowest.append(line)
        elif "eval/loss" in line:
            self._held_out.append(line)

    def list_holding(self, free_bytes: int | None) -> list[Alarm]:
        """Return the alarms that hold now.

        `free_bytes`: free space of the run folder's disk; None for a bucket.
        """
        rules: tuple[Callable[[], Alarm | None], ...] = (
            self._check_norm,
            self._check_gap,
            self._check_layers,
            self._check_experts,
            self._check_throughput,
            self._check_ranks,
            lambda: self._check_disk(free_bytes),
            self._check_prediction,
        )
        return [alarm for rule in rules if (alarm := rule())]

    def _check_norm(self) -> Alarm | None:
        if len(self._updates) < NOW + BEFORE:
            return None
        before = list(self._updates)[:BEFORE]
        now = list(self._updates)[BEFORE:]
        old, new = (_compute_median(part, "train/grad_norm") for part in (before, now))
        flat = _compute_median(now, "train/loss") <= FLAT_LOSS * _compute_median(
            before, "train/loss"
        )
        if not (new > NORM_RISE * old and flat):
            return None
        what = f"the gradient norm rose from {old:.3g} to {new:.3g}, but the loss has not risen yet"
        action = "A loss spike may follow: lower training.optimizer.lr or training.clip_norm"
        return Alarm("gradient_norm_rises", what, action)

    def _check_gap(self) -> Alarm | None:
        losses = [line["eval/loss"] for line in self._held_out if line["eval/loss"] is not None]
        if len(losses) <= RISING or any(a >= b for a, b in itertools.pairwise(losses)):
            return None
        first = self._held_out[0]
        what = (
            f"the held-out loss has risen {RISING} times in a row, from {losses[0]:.4g} to "
            f"{losses[-1]:.4g}"
        )
        action = f"Use the checkpoint near step {first['step']:,}, or train on more data"
        return Alarm("validation_gap_grows", what, action)

    def _check_layers(self) -> Alarm | None:
        norms = {
            name: value
            for name, value in self._layers.items()
            if name.startswith("layers/") and name.endswith("/grad_norm")
        }
        usual = statistics.median(norms.values()) if norms else 0.0
        dead = sorted(name.split("/")[1] for name, v in norms.items() if v <= DEAD_SHARE * usual)
        if not dead or not usual:
            return None
        more = f", and neither do {len(dead) - 1} more" if len(dead) > 1 else ""
        what = f"layer {dead[0]} gets no gradient{more}"
        return Alarm(
            "dead_layers", what, "Lower training.optimizer.lr, or start again from other weights"
        )

    def _check_experts(self) -> Alarm | None:
        if len(self._experts) < DEAD_LOOKS:
            return None
        most = {name: max(e.get(name, 1.0) for e in self._experts) for name in self._experts[-1]}
        dead = [name for name, load in most.items() if load <= DEAD_LOAD]
        if not dead:
            return None
        _, layer, expert, _ = dead[0].split("/")
        more = f", and to {len(dead) - 1} more experts" if len(dead) > 1 else ""
        what = f"almost no tokens are routed to expert {expert} of layer {layer}{more}"
        action = "Raise model.feedforward.balance_loss, or set balance_bias = true"
        return Alarm("dead_experts", what, action)

    def _check_throughput(self) -> Alarm | None:
        recent = list(self._updates)[-20:]
        if len(recent) < 20 or len({line["cluster/workers"] for line in recent}) > 1:
            return None
        workers = int(recent[0]["cluster/workers"])
        speed = _compute_median(recent, "train/tokens_per_second")
        best = self._best[workers] = max(speed, self._best.get(workers, 0.0))
        if speed >= SLOWER * best:
            return None
        what = (
            f"throughput fell by {1 - speed / best:.0%}: {speed:,.0f} tokens/s, was "
            f"{best:,.0f} with the same number of workers ({workers})"
        )
        return Alarm("throughput_falls", what, 'See "Where the time went" in the report')

    def _check_ranks(self) -> Alarm | None:
        ranks = {line["cluster/slowest_rank"] for line in self._slowest}
        least = min((line["cluster/slowest_excess"] for line in self._slowest), default=0.0)
        if len(self._slowest) < SLOW_LOOKS or len(ranks) > 1 or least < SLOW_RANK:
            return None
        what = (
            f"rank {int(ranks.pop())} repeatedly takes at least {least:.0%} longer than the "
            "other ranks"
        )
        return Alarm("slow_worker", what, "Drain its node, or check what else runs there")

    def _check_disk(self, free: int | None) -> Alarm | None:
        if free is None or not self._checkpoint or free >= 2 * self._checkpoint:
            return None
        what = (
            f"the disk has {format_bytes(free)} free, and a checkpoint takes "
            f"{format_bytes(self._checkpoint)}"
        )
        return Alarm("disk_fills", what, "Free some space, or lower training.checkpoints.keep")

    def _check_prediction(self) -> Alarm | None:
        if self._prediction is None or len(self._updates) < NOW:
            return None
        recent = list(self._updates)[-NOW:]
        # a learning rate that has not decayed yet says little about the final loss
        if 2 * recent[-1]["step"] < self._steps:
            return None
        predicted, _, high = self._prediction.interpolate(recent[-1]["train/tokens"])
        limit = ABOVE_PREDICTION * (predicted if math.isnan(high) else high)
        loss = _compute_median(recent, "train/loss")
        if loss <= limit:
            return None
        what = f"the loss is {loss:.4g}, but the scaling law predicts {predicted:.4g}"
        return Alarm(
            "above_prediction",
            what,
            "Compare learning rate, batch size and data with the law's runs",
        )


def _compute_median(lines: Sequence[Line], name: str) -> float:
    known: list[float] = [line[name] for line in lines if line[name] is not None]
    return statistics.median(known or [0.0])


def compute_effective_epochs(epochs: float) -> float:
    """Return how many epochs of new data `epochs` of the same data are worth.

    By arXiv:2305.16264, eq. 5.
    """
    if epochs <= 1:
        return epochs
    return 1 + WORTH_OF_REPEATS * (1 - math.exp(-(epochs - 1) / WORTH_OF_REPEATS))


def find_repetition_alarms(epochs: Mapping[str, float]) -> list[Alarm]:
    """Return an alarm for each source that a run reads too often; `epochs`: times by source."""
    found = []
    for source, count in epochs.items():
        if count > EPOCHS:
            worth = compute_effective_epochs(count)
            what = (
                f"source '{source}' is read {count:.1f} times, which is worth {worth:.1f} "
                "times as much new data"
            )
            action = (
                f"Lower its weight, or add data: up to {EPOCHS:g} times, repeated data is "
                "nearly as good as new"
            )
            found.append(Alarm("too_many_epochs", what, action))
    return found
