import pytest
from pydantic import ValidationError

from trainrig.errors import ConfigError
from trainrig.train.evaluations import (
    BestBy,
    CheckpointScore,
    RunEvaluation,
    ScoredCheckpoint,
    StopIf,
    choose_best,
    find_stop_reason,
)
from trainrig.train.run_file.training_settings import Training

QUICK = {"name": "quick", "tasks": ("copa",), "every": 10}


def score_rows_of(*values, higher=True):
    return [
        ScoredCheckpoint("quick", 10 * (at + 1), 1, {"copa": CheckpointScore(value, None, higher)})
        for at, value in enumerate(values)
    ]


def make_rule(**changes):
    return StopIf(**{"evaluation": "quick", "score": "copa"} | changes)


@pytest.mark.parametrize(
    ("changes", "values", "higher", "stops"),
    [
        # Not better than the best: a tie is no improvement.
        ({"patience": 2}, [0.5, 0.4, 0.5], True, True),
        ({"patience": 2}, [0.5, 0.4, 0.6], True, False),
        ({"patience": 2}, [0.5, 0.6, 0.55], True, False),
        ({"patience": 2}, [0.5], True, False),
        ({}, [0.5], True, False),  # no earlier score to compare with
        ({"patience": 2}, [3.0, 2.9, 2.8], False, False),  # a perplexity that falls
        ({"patience": 2}, [3.0, 3.1, 3.2], False, True),
        ({"comparison": "below", "value": 0.3}, [0.5, 0.2], True, True),
        ({"comparison": "below", "value": 0.3, "patience": 2}, [0.5, 0.2], True, False),
        ({"comparison": "above", "value": 0.9}, [0.5, 0.95], True, True),
        ({"comparison": "above", "value": 0.9}, [0.95, 0.5], True, False),
    ],
)
def test_a_run_ends_when_its_rule_has_held_for_as_many_scores_as_it_says(
    changes, values, higher, stops
):
    assert (
        find_stop_reason(make_rule(**changes), score_rows_of(*values, higher=higher)) is not None
    ) is stops


def test_the_best_is_the_earliest_of_equals_and_never_one_without_a_number():
    best = BestBy(evaluation="quick", score="copa")
    assert choose_best(best, score_rows_of(0.2, 0.7, 0.7, float("nan"))).step == 20
    assert choose_best(best, score_rows_of(5.0, 3.0, 4.0, higher=False)).step == 20
    assert choose_best(best, []) is None


def test_a_missing_score_is_named_with_the_available_ones():
    with pytest.raises(ConfigError, match="no score 'piqa'"):
        choose_best(BestBy(evaluation="quick", score="piqa"), score_rows_of(0.5))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"evaluations": (QUICK, QUICK)}, "2 of them are named 'quick'"),
        ({"stop_if": {"evaluation": "quick", "score": "copa"}}, "training.evaluations has none"),
        (
            {"evaluations": (QUICK,), "best": {"evaluation": "slow", "score": "copa"}},
            r"evaluation 'slow'.*training.evaluations has quick",
        ),
        ({"evaluations": (QUICK | {"task_list": "a.toml"},)}, "either `tasks` or `task_list`"),
        ({"evaluations": (QUICK | {"tasks": ()},)}, "either `tasks` or `task_list`"),
        (
            {
                "evaluations": (QUICK,),
                "stop_if": {"evaluation": "quick", "score": "copa", "comparison": "below"},
            },
            "'below' gives no `value`",
        ),
    ],
)
def test_evaluations_that_cannot_work_are_refused(training, said):
    with pytest.raises(ValidationError, match=said):
        Training(steps=20, **training)


def test_an_evaluation_is_due_at_its_cadence_and_after_the_last_step():
    quick = RunEvaluation(**QUICK)
    assert [step for step in range(26) if quick.due(step, 25)] == [10, 20, 25]
    assert Training(steps=25, evaluations=(quick,), checkpoints={"every": 100}).saves_after(20)
