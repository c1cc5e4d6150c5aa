"""Weighted sum of several rewards, with the score of each part and the count of faults."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainrig.errors import ClusterError, ConfigError, DataError, TrainrigError
from trainrig.posttrain.rewards import reward_contract

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardScores:
    """Scores of a list of completions, in its order."""

    totals: tuple[float, ...]  # weighted sums
    parts: Mapping[str, tuple[float, ...]]  # scores by reward name, before the weight
    faults: Mapping[str, int]  # number of faults by NAME/KIND, such as exact/no_target


class WeightedPart(Protocol):
    """Settings of a summand of the weighted sum: a reward, or an environment."""

    @property
    def name(self) -> str:
        """Name in metrics."""
        ...

    @property
    def weight(self) -> float:
        """Factor in the weighted sum."""
        ...

    @property
    def fault_score(self) -> float:
        """Score to use where there is a Fault, before the weight."""
        ...


@dataclass(frozen=True)
class WeightedRewards:
    """Opened rewards, whose weighted sum scores completions."""

    parts: tuple[tuple[reward_contract.RewardPart, reward_contract.CompletionScorer], ...]

    def score(
        self,
        completions: Sequence[reward_contract.Completion],
        given: Sequence[tuple[WeightedPart, Sequence[reward_contract.Score]]] = (),
        rows: Sequence[int] = (),
    ) -> RewardScores:
        """Return the weighted totals, the scores of each part, and the counts of faults.

        A completion that a part could not score gets the part's `fault_score`. Raises DataError if
        a part scored no completion although they answer several prompts: then the reward is broken,
        not a row. Raises DataError with the number of the row if a part raises an exception, or
        ClusterError if that is an OSError or MemoryError.

        Args:
            completions: Completions to score.
            given: Further summands whose scores are known already, such as an environment's.
            rows: Row number of each completion's prompt, for messages.
        """
        parts: dict[str, tuple[float, ...]] = {}
        faults: Counter[str] = Counter()
        scored = [
            (settings, _compute_scores(settings.name, reward, completions, rows))
            for settings, reward in self.parts
        ]
        every: list[tuple[WeightedPart, Sequence[reward_contract.Score]]] = [*scored, *given]
        for settings, found_scores in every:
            scores = [_check_finite(score) for score in found_scores]
            found = [score for score in scores if isinstance(score, reward_contract.Fault)]
            faults.update(f"{settings.name}/{fault.kind}" for fault in found)
            if found:
                self._tell(settings.name, found, completions)
            parts[settings.name] = tuple(
                settings.fault_score if isinstance(score, reward_contract.Fault) else score
                for score in scores
            )
        weights = [settings.weight for settings, _ in every]
        totals = tuple(
            sum((w * s[n] for w, s in zip(weights, parts.values(), strict=True)), start=0.0)
            for n in range(len(completions))
        )
        return RewardScores(totals, parts, dict(sorted(faults.items())))

    def check_rows(self, rows: Iterable[Mapping[str, object]], where: str) -> None:
        """Raise DataError if one of `rows` lacks a column that a part compares with.

        The message names the first such row, and `where`, the source of the rows.
        """
        wanted = [(part.name, column) for part, _ in self.parts for column in part.columns]
        for number, row in enumerate(rows):
            for name, column in wanted:
                if row.get(column) is None:
                    raise DataError(
                        f"{where}, row {number}: no column '{column}', which the reward "
                        f"'{name}' compares with; the row has {', '.join(sorted(row))}; name "
                        "the reward's column by `column`"
                    )

    def _tell(
        self,
        name: str,
        found: Sequence[reward_contract.Fault],
        completions: Sequence[reward_contract.Completion],
    ) -> None:
        first = f"{found[0].kind}: {found[0].detail}"
        if (
            len(found) == len(completions)
            and len({completion.prompt for completion in completions}) > 1
        ):
            raise DataError(
                f"rewards: '{name}' scored none of {len(completions)} completions; the first, "
                f"{first}"
            )
        said = "reward '%s': %d of %d completions have no score; the first, %s"
        log.warning(said, name, len(found), len(completions), first)


def build_rewards(
    parts: Sequence[reward_contract.RewardPart], further: Sequence[WeightedPart] = ()
) -> WeightedRewards:
    """Open the `rewards` of a run file and return their weighted sum.

    Raises ConfigError if there is no reward and no further summand, if two have the same name, or
    if a reward cannot be opened. `further` are summands whose scores come from elsewhere, such as
    an environment; only their names are checked.
    """
    if not (parts or further):
        raise ConfigError(
            'rewards: none is given; write one, such as [[rewards]] kind = "ExactAnswer"'
        )
    for name, times in Counter(part.name for part in (*parts, *further)).items():
        if times > 1:
            raise ConfigError(
                f"rewards: {times} have the name '{name}'; give each of them another `name`"
            )
    return WeightedRewards(tuple((part, part.open()) for part in parts))


def hash_reward_inputs(parts: Sequence[reward_contract.RewardPart]) -> dict[str, str]:
    """Return content keys of all files that the scores depend on, for a stage's fingerprint.

    The keys of the dict are paths in the run file, such as `rewards[0].checkpoint`.
    """
    return {
        f"rewards[{number}].{field}": key
        for number, part in enumerate(parts)
        for field, key in part.hash_inputs().items()
    }


def _compute_scores(
    name: str,
    reward: reward_contract.CompletionScorer,
    completions: Sequence[reward_contract.Completion],
    rows: Sequence[int],
) -> Sequence[reward_contract.Score]:
    try:
        return _score_all(reward, completions)
    except TrainrigError:
        raise
    except (OSError, MemoryError) as error:
        raise ClusterError(
            f"rewards: '{name}' raised {_format_error(error)} while it scored "
            f"{len(completions)} completions; finished work is kept, and the same command "
            "continues from it"
        ) from error
    except Exception as error:
        where, own = _find_raising(reward, completions, rows) or ("the whole batch", error)
        raise DataError(
            f"rewards: '{name}' raised {_format_error(own)} on {where}; correct or remove "
            "that row, or remove the reward"
        ) from error


def _score_all(
    reward: reward_contract.CompletionScorer, completions: Sequence[reward_contract.Completion]
) -> Sequence[reward_contract.Score]:
    scores = reward.score(completions)
    if len(scores) != len(completions):
        raise ValueError(
            f"the reward returned {len(scores)} scores for {len(completions)} completions"
        )
    return scores


def _find_raising(
    reward: reward_contract.CompletionScorer,
    completions: Sequence[reward_contract.Completion],
    rows: Sequence[int],
) -> tuple[str, Exception] | None:
    """Return which completion is the first to raise if scored alone, and the exception.

    The completion is named in words. Returns None if no completion raises.
    """
    for place, completion in enumerate(completions):
        try:
            _score_all(reward, [completion])
        except Exception as error:
            row = f"row {rows[place]}, " if rows else ""
            return f"the completion of {row}prompt {completion.prompt!r:.60}", error
    return None


def _format_error(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _check_finite(score: reward_contract.Score) -> reward_contract.Score:
    if isinstance(score, reward_contract.Fault) or math.isfinite(score):
        return score
    return reward_contract.Fault("not_finite", f"the score is {score}")
