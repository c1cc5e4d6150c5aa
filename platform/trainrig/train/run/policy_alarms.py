"""Alarm rules of runs that sample completions: misleading rewards, collapse, length and drift.

A run so far is cut into parts of equal length, and the newest part is compared with earlier ones.
A difference counts if it exceeds the noise of the parts' means (train/run/metric_trends.py).
"""

import bisect
import math
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig import storage
from trainrig.objectives.objective_kinds import find_kind
from trainrig.objectives.policy.policy_gradient import PolicyGradient
from trainrig.train.run.alarm_rules import Alarm, Line
from trainrig.train.run.metric_trends import Trend

PREFIX = "train/diagnostics/"
SCORES = "scores/"
ERROR = "/error"
WATCHED = (
    "reward",
    "entropy",
    "distinct",
    "shared",
    "flat",
    "completion_tokens",
    "finished",
    "policy_change",
    "sampler_gap",
    "reference_divergence",
)
# Parts have a fifth of the batches so far, within these bounds. Ten batches are the fewest whose
# noise can be estimated well enough; with more than a hundred, an alarm would come late.
PARTS = 5
FEWEST = 10
MOST = 100
# Batches that are remembered: the first two parts, and the newest. So memory does not grow with the
# run, and nor does the time that each check takes.
REMEMBERED = 10_000
SURE_OF_SCORES = 3.0  # standard errors of held-out scores, of which a run has few
LEAST_FALL = 0.05  # share of its best value by which a measure must fall
LOST_REWARD = 0.25  # the same for the trained reward, which may move with the prompts
# Where policy gradients use up the entropy, the reward no longer rises (Cui et al. 2025,
# arXiv:2505.22617, section 2).
COLLAPSED_ENTROPY = 0.2  # share of the first part's entropy
COLLAPSED_ANSWERS = 0.5  # share of the first part's different answers to a prompt
SAME_ANSWER = 0.8  # chance that two prompts get the same answer
FLAT = 0.95  # share of completions in groups with equal rewards
LONGER = 1.5  # factor on the tokens of an answer in the first part
TRUNCATED = 0.1  # rise of the share of answers that were cut off
SPREAD_OUT = 1.5  # factor on the first part's entropy
AWAY = 0.1  # nats per token from the reference
GAP_SHARE = 0.5  # share of `rollouts.largest_gap`, at which the run ends
USUAL_CLIP = 0.2  # clip of PPO (arXiv:1707.06347, section 6.1) and of GRPO
LOWER_IS_BETTER = ("bits_per_byte", "perplexity")  # ends of names of scores


@dataclass(frozen=True)
class PolicyFacts:
    """Settings of a run on which its alarms depend."""

    measured: tuple[str, ...] = ()  # names of the rewards that have no weight
    rewarded: bool = True  # False if a teacher is followed
    compares: bool = True  # only differences of rewards within a group are learned from
    updates: int = 1  # steps for each batch
    samples: int = 8  # completions for each prompt
    largest_gap: float = 0.02  # nats per token
    clip_low: float = USUAL_CLIP
    clip_high: float = USUAL_CLIP

    @property
    def clipped_change(self) -> float:
        """Divergence (k3, nats per token) of a policy whose every token is at the clip."""
        low = 1 - max(self.clip_low, USUAL_CLIP)
        high = 1 + max(self.clip_high, USUAL_CLIP)
        return max(ratio - 1 - math.log(ratio) for ratio in (low, high))


def read_policy_facts(folder: str) -> PolicyFacts | None:
    """Read the facts of the run in `folder` from its run file; None if it samples nothing."""
    path = storage.join(folder, "run.toml")
    if not storage.exists(path):
        return None
    run: Mapping[str, Any] = tomllib.loads(storage.read(path).decode())
    if run["stage"] != "rl":
        return None
    kind = find_kind(run["objective"]["kind"])
    assert kind is not None, "the run file was checked"
    objective = kind.model_validate(run["objective"])
    assert isinstance(objective, PolicyGradient), "all objectives of rl are"
    rollouts = run["rollouts"]
    return PolicyFacts(
        measured=tuple(part["name"] for part in run.get("rewards", ()) if part["weight"] == 0),
        rewarded="teacher" not in run,
        compares=objective.compares_completions,
        updates=rollouts["updates"],
        samples=rollouts["samples"],
        largest_gap=rollouts["largest_gap"],
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
    )


class PolicyRules:
    """Alarm rules of a run that samples completions; they read its lines one after another."""

    def __init__(self, facts: PolicyFacts | None) -> None:
        """Store the settings of the run; without any, no alarm is raised."""
        self._facts = facts or PolicyFacts()
        self._silent = facts is None
        self._measures = tuple(f"reward_{name}" for name in self._facts.measured)
        self._steps: list[int] = []  # last step of each batch
        self._values: dict[str, list[float]] = {name: [] for name in (*WATCHED, *self._measures)}
        self._scores: dict[str, dict[int, float]] = defaultdict(dict)
        self._trends: dict[str, Trend] = {}
        self._size = FEWEST
        self._held: dict[str, tuple[int, Alarm]] = {}  # (batch when it held last, alarm)

    def hear(self, line: Line) -> None:
        """Record a line of metrics. A line of a batch replaces earlier ones of it, or of later."""
        if self._silent:
            return
        for name, value in line.items():
            if name.startswith(SCORES) and value is not None:
                self._scores[name.removeprefix(SCORES)][line["step"]] = value
        if f"{PREFIX}entropy" not in line:
            return
        self._forget_from(line["step"])
        values: dict[str, float] = {}
        for name, known in self._values.items():
            value = line.get(f"{PREFIX}{name}", math.nan)
            if value is None:  # It is not finite. The last finite value stands for it.
                if not known:
                    return
                value = known[-1]
            values[name] = value
        self._steps.append(line["step"])
        for name, value in values.items():
            self._values[name].append(value)
        if len(self._steps) > REMEMBERED:
            self._forget_scores(self._steps[2 * MOST], self._steps[3 * MOST - 1])
            del self._steps[2 * MOST : 3 * MOST]
            for numbers in self._values.values():
                del numbers[2 * MOST : 3 * MOST]

    def _forget_from(self, step: int) -> None:
        """Forget the batch of `step` and all later ones, which an attempt makes again."""
        if self._steps and step <= self._steps[-1]:
            self._forget_scores(step, self._steps[-1])
        number = self._number_batch(step)
        while self._steps and self._number_batch(self._steps[-1]) >= number:
            self._steps.pop()
            for known in self._values.values():
                known.pop()

    def _forget_scores(self, first: int, last: int) -> None:
        for scores in self._scores.values():
            for step in [step for step in scores if first <= step <= last]:
                del scores[step]

    def _number_batch(self, step: int) -> int:
        return (step - 1) // self._facts.updates

    def list_holding(self) -> list[Alarm]:
        """Return the alarms that hold now."""
        count = len(self._steps)
        self._size = min(MOST, max(FEWEST, count // PARTS))
        if count < FEWEST:
            return []
        arrays = {name: np.array(values) for name, values in self._values.items()}
        self._trends = {
            name: Trend.of(values, self._size)
            for name, values in arrays.items()
            if not np.isnan(values).any()
        }
        found = [self._check_update(), self._check_gap()]
        if self._facts.rewarded and "reward" in self._trends:
            found.append(self._check_flat())
            if count >= 2 * FEWEST:
                found += [self._check_same_answer(), self._check_entropy(), self._check_length()]
                found += [self._check_hacking(), self._check_scores(), self._check_drift()]
        new: dict[str, Alarm] = {}
        for alarm in filter(None, found):
            new.setdefault(alarm.name, alarm)
        newest = self._number_batch(self._steps[-1])
        self._held |= {name: (newest, alarm) for name, alarm in new.items()}
        # An alarm holds for a part's length after its cause: around a limit, it is raised once.
        return [alarm for held, alarm in self._held.values() if newest - held < self._size]

    def _find_step(self, part: int) -> int:
        """Return the last step of part number `part`."""
        begin = len(self._steps) % self._size
        return self._steps[begin + (part + 1) * self._size - 1]

    def _is_gaining(self) -> bool:
        """Return whether the reward, or a measure beside it, has risen since the first part."""
        names = self._measures or ("reward",)
        return any(self._trends[name].is_above() for name in names if name in self._trends)

    def _check_hacking(self) -> Alarm | None:
        """Check for overoptimization (Gao et al. 2023, arXiv:2210.10760, figure 1)."""
        reward = self._trends["reward"]
        for name in self._facts.measured:
            measure = self._trends.get(f"reward_{name}")
            if measure is None or not measure.is_below_best(LEAST_FALL):
                continue
            best = measure.best
            if reward.is_above(best):
                return self._build_hacking(
                    (reward.means[best], reward.last),
                    (name, measure.means[best], measure.last),
                    self._find_step(best),
                )
        return None

    def _check_scores(self) -> Alarm | None:
        reward = self._values["reward"]
        for name, scores in self._scores.items():
            errors = self._scores.get(name + ERROR, {})
            steps = sorted(scores.keys() & errors.keys())
            if len(steps) < 2 or name.endswith((ERROR, *LOWER_IS_BETTER)):
                continue
            best = max(steps[:-1], key=scores.__getitem__)
            newest = steps[-1]
            noise = math.hypot(errors[best], errors[newest])
            sure = SURE_OF_SCORES + math.sqrt(math.log(len(steps)))
            fall = scores[best] - scores[newest]
            if fall <= max(sure * noise, LEAST_FALL * abs(scores[best])):
                continue
            ends = [max(self._size, bisect.bisect(self._steps, step)) for step in (best, newest)]
            rewards = Trend.of(
                np.array([x for end in ends for x in reward[end - self._size : end]]), self._size
            )
            if rewards.is_above():
                pair = (rewards.first, rewards.last)
                return self._build_hacking(pair, (name, scores[best], scores[newest]), best)
        return None

    def _build_hacking(
        self, reward: tuple[float, float], measure: tuple[str, float, float], step: int
    ) -> Alarm:
        name, before, after = measure
        what = (
            f"the reward rose from {reward[0]:.3g} to {reward[1]:.3g}, but '{name}' fell from "
            f"{before:.3g} to {after:.3g} after step {step:,}"
        )
        action = "Go back to that step, and raise objective.reference.weight or correct the reward"
        return Alarm("reward_hacking", what, action)

    def _check_same_answer(self) -> Alarm | None:
        shared = self._trends.get("shared")
        if shared is None or shared.last < SAME_ANSWER or shared.first > SAME_ANSWER / 2:
            return None
        what = (
            f"two prompts get the same answer in {shared.last:.0%} of cases, and in "
            f"{shared.first:.0%} at first"
        )
        action = "Go back to an earlier checkpoint, and check which answer the reward prefers"
        return Alarm("policy_collapse", what, action)

    def _check_entropy(self) -> Alarm | None:
        entropy = self._trends.get("entropy")
        distinct = self._trends.get("distinct")
        if entropy is None or distinct is None or entropy.last > COLLAPSED_ENTROPY * entropy.first:
            return None
        if distinct.last > COLLAPSED_ANSWERS * distinct.first or self._is_gaining():
            return None
        what = (
            f"entropy fell from {entropy.first:.2g} to {entropy.last:.2g} nats a token, and "
            f"different answers from {distinct.first:.0%} to {distinct.last:.0%}"
        )
        action = "Lower training.optimizer.lr, or raise objective.clip_high or the temperature"
        return Alarm("policy_collapse", what, action)

    def _check_flat(self) -> Alarm | None:
        """Check for groups of equal rewards, which have no gradient (DAPO, arXiv:2503.14476)."""
        flat = self._trends.get("flat")
        facts = self._facts
        if flat is None or flat.last < FLAT or not facts.compares:
            return None
        distinct = self._trends.get("distinct")
        same = distinct is not None and distinct.last * facts.samples < 2
        why = "and nearly equal answers" if same else "although the answers differ"
        what = f"{flat.last:.0%} of groups have equal rewards, {why}, so almost nothing is learned"
        action = (
            "Use prompts that are not solved yet, or an earlier checkpoint and a lower rate"
            if same
            else "Lower the rate if the reward fell. Else check it, or use other prompts"
        )
        return Alarm("policy_collapse", what, action)

    def _check_length(self) -> Alarm | None:
        tokens = self._trends.get("completion_tokens")
        finished = self._trends.get("finished")
        if tokens is None or finished is None or self._is_gaining():
            return None
        longer = tokens.is_above() and tokens.last > LONGER * tokens.first
        cut = finished.first - finished.last > TRUNCATED and finished.is_below_best(0.0)
        if not (longer or cut):
            return None
        what = (
            f"answers grew from {tokens.first:.3g} to {tokens.last:.3g} tokens without gain, and "
            f"{1 - finished.last:.0%} are cut off, {1 - finished.first:.0%} at first"
        )
        action = "Check if the reward prefers length, or penalize it"
        return Alarm("length_growth", what, action)

    def _check_drift(self) -> Alarm | None:
        """Check for a policy that changes without gain."""
        for name in ("reward", *self._measures):
            trend = self._trends.get(name)
            if trend is not None and trend.is_below_best(LOST_REWARD):
                if self._is_hacked(name, trend):
                    continue
                shown = name.removeprefix("reward_")
                what = (
                    f"'{shown}' fell from {trend.means[trend.best]:.3g} to {trend.last:.3g} after "
                    f"step {self._find_step(trend.best):,}"
                )
                action = "Go back to that step, and lower training.optimizer.lr or set a reference"
                return Alarm("policy_drift", what, action)
        entropy = self._trends.get("entropy")
        away = self._trends.get("reference_divergence")
        if self._is_gaining() or self._trends["reward"].is_above():
            return None
        action = "Lower training.optimizer.lr, set a reference, or check if the reward is noise"
        if entropy and entropy.last > SPREAD_OUT * entropy.first and entropy.is_above():
            what = (
                f"entropy rose from {entropy.first:.2g} to {entropy.last:.2g} nats a token, but "
                "the reward did not rise"
            )
            return Alarm("policy_drift", what, action)
        if away and away.last > AWAY and away.is_above():
            what = (
                f"the policy is {away.last:.2g} nats a token away from the reference, but the "
                "reward did not rise"
            )
            return Alarm("policy_drift", what, action)
        return None

    def _is_hacked(self, name: str, trend: Trend) -> bool:
        """Return whether the trained reward rose while `name`, another one, fell."""
        return name != "reward" and self._trends["reward"].is_above(trend.best)

    def _check_update(self) -> Alarm | None:
        change = self._trends.get("policy_change")
        limit = self._facts.clipped_change
        if change is None or change.last <= limit:
            return None
        what = (
            f"updates change the policy by {change.last:.2g} nats a token within a batch; with "
            f"all tokens at the clip it would be {limit:.2g}"
        )
        return Alarm("policy_drift", what, "Lower training.optimizer.lr or rollouts.updates")

    def _check_gap(self) -> Alarm | None:
        gap = self._trends.get("sampler_gap")
        limit = self._facts.largest_gap
        if gap is None or gap.last < GAP_SHARE * limit or not gap.is_above():
            return None
        what = (
            f"sampling and training differ by {gap.last:.2g} nats a token, {gap.first:.2g} at "
            f"first; the run ends at {limit:g}"
        )
        action = "Use a finer training.precision, or a lower rollouts.lag"
        return Alarm("policy_drift", what, action)
