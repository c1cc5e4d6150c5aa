"""Several rewards as one: a weighted sum, with each part and each fault in sight."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainrig.errors import ClusterError, ConfigError, DataError, TrainrigError
from trainrig.posttrain.rewards.contract import (
    Completion,
    CompletionScorer,
    Fault,
    RewardPart,
    Score,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardScores:
    """What completions got, in their order."""

    totals: tuple[float, ...]  # weighted sums
    parts: Mapping[str, tuple[float, ...]]  # by name, before the weight
    faults: Mapping[str, int]  # how many, by NAME/KIND, such as exact/no_target


class WeightedPart(Protocol):
    """What has a share in the sum: a reward, or an environment."""

    @property
    def name(self) -> str:
        """In metrics."""
        ...

    @property
    def weight(self) -> float:
        """What it is multiplied by."""
        ...

    @property
    def fault_score(self) -> float:
        """In the place of a score that is missing."""
        ...


@dataclass(frozen=True)
class WeightedRewards:
    """Rewards with their weights."""

    parts: tuple[tuple[RewardPart, CompletionScorer], ...]

    def score(
        self,
        completions: Sequence[Completion],
        given: Sequence[tuple[WeightedPart, Sequence[Score]]] = (),
        rows: Sequence[int] = (),
    ) -> RewardScores:
        """The weighted totals and the parts of `completions`; `given`: scores that are there, of
        further parts; `rows`: the number of the row that each answers, for messages.

        What could not be scored gets its part's `fault_score`, and is counted. Raises DataError if
        a part scored none of them, though they answer several prompts: the reward is broken then,
        not a row. Raises DataError, which names the row, where a part raises an exception of its
        own, and ClusterError where that is of the machine or the network.
        """
        parts: dict[str, tuple[float, ...]] = {}
        faults: Counter[str] = Counter()
        scored = [
            (settings, _compute_scores(settings.name, reward, completions, rows))
            for settings, reward in self.parts
        ]
        every: list[tuple[WeightedPart, Sequence[Score]]] = [*scored, *given]
        for settings, found_scores in every:
            scores = [_check_finite(each) for each in found_scores]
            found = [each for each in scores if isinstance(each, Fault)]
            faults.update(f"{settings.name}/{each.kind}" for each in found)
            if found:
                self._tell(settings.name, found, completions)
            parts[settings.name] = tuple(
                settings.fault_score if isinstance(each, Fault) else each for each in scores
            )
        weights = [settings.weight for settings, _ in every]
        totals = tuple(
            sum((w * s[n] for w, s in zip(weights, parts.values(), strict=True)), start=0.0)
            for n in range(len(completions))
        )
        return RewardScores(totals, parts, dict(sorted(faults.items())))

    def check_rows(self, rows: Iterable[Mapping[str, object]], where: str) -> None:
        """Raise DataError for the first of `rows` without a column that a part compares with;
        `where` says where the rows are from."""
        wanted = [(part.name, column) for part, _ in self.parts for column in part.columns]
        for number, row in enumerate(rows):
            for name, column in wanted:
                if row.get(column) is None:
                    raise DataError(
                        f"{where}, row {number}: no '{column}', which the reward '{name}' compares "
                        f"with; it has {', '.join(sorted(row))}; name its column by `column`"
                    )

    def _tell(self, name: str, found: Sequence[Fault], completions: Sequence[Completion]) -> None:
        first = f"{found[0].kind}: {found[0].detail}"
        if len(found) == len(completions) and len({each.prompt for each in completions}) > 1:
            raise DataError(
                f"rewards: '{name}' scored none of {len(completions)} completions; the first, "
                f"{first}"
            )
        said = "reward '%s': %d of %d without a score; the first, %s"
        log.warning(said, name, len(found), len(completions), first)


def build_rewards(
    parts: Sequence[RewardPart], further: Sequence[WeightedPart] = ()
) -> WeightedRewards:
    """`parts`, the members of a run file's `rewards`, ready to score; `further`: what has a share
    beside them.

    Raises ConfigError for none, for two of one name, and where one cannot be opened.
    """
    if not (parts or further):
        raise ConfigError('rewards: none; write one, such as [[rewards]] kind = "ExactAnswer"')
    for name, times in Counter(part.name for part in (*parts, *further)).items():
        if times > 1:
            raise ConfigError(f"rewards: {times} are named '{name}'; give each its own `name`")
    return WeightedRewards(tuple((part, part.open()) for part in parts))


def hash_reward_inputs(parts: Sequence[RewardPart]) -> dict[str, str]:
    """What the scores depend on beside the run file, for a stage's fingerprint: content keys by
    place."""
    return {
        f"rewards[{number}].{field}": key
        for number, part in enumerate(parts)
        for field, key in part.hash_inputs().items()
    }


def _compute_scores(
    name: str, reward: CompletionScorer, completions: Sequence[Completion], rows: Sequence[int]
) -> Sequence[Score]:
    try:
        return _score_all(reward, completions)
    except TrainrigError:
        raise
    except (OSError, MemoryError) as error:
        raise ClusterError(
            f"rewards: '{name}' raised {_format_error(error)} while it scored {len(completions)} "
            "completions; what was done stays done, and the same command goes on"
        ) from error
    except Exception as error:
        where, own = _find_raising(reward, completions, rows) or ("of all together", error)
        raise DataError(
            f"rewards: '{name}' raised {_format_error(own)} at the completion {where}; mend or "
            "leave out that row, or leave out the reward"
        ) from error


def _score_all(reward: CompletionScorer, completions: Sequence[Completion]) -> Sequence[Score]:
    scores = reward.score(completions)
    if len(scores) != len(completions):
        raise ValueError(f"{len(scores)} scores of {len(completions)} completions")
    return scores


def _find_raising(
    reward: CompletionScorer, completions: Sequence[Completion], rows: Sequence[int]
) -> tuple[str, Exception] | None:
    """Which of `completions` is the first that `reward` raises at by itself, and what."""
    for place, completion in enumerate(completions):
        try:
            _score_all(reward, [completion])
        except Exception as error:
            row = f"row {rows[place]}, " if rows else ""
            return f"of {row}prompt {completion.prompt!r:.60}", error
    return None


def _format_error(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _check_finite(score: Score) -> Score:
    if isinstance(score, Fault) or math.isfinite(score):
        return score
    return Fault("not_finite", f"the score is {score}")
