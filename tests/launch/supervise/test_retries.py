import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.launch.supervise.attempt_ends import (
    CAUSES,
    NEVER,
    RETRIES,
    Limits,
    Retries,
    RunEnd,
    build_signature,
)
from trainrig.processes.retry_policy import GiveUp

ENDS = st.tuples(
    st.builds(RunEnd, st.just(1), st.sampled_from(CAUSES), st.sampled_from(["a 1", "a 2", "b"])),
    st.integers(0, 4),
)
LIMITS = st.builds(
    Limits,
    retries=st.dictionaries(
        st.sampled_from([c for c in CAUSES if c not in NEVER]), st.integers(0, 6)
    ),
    back_off=st.floats(0.1, 10),
    longest_back_off=st.floats(0.1, 100),
)


@given(LIMITS, st.lists(ENDS, max_size=40))
def test_budgets_are_kept_and_nothing_is_tried_at_the_same_place_twice(limits, ends):
    retries = Retries(limits)
    used = {}
    seen = []
    for end, progress in ends:
        decision = retries.decide_retry(end, progress)
        if isinstance(decision, float):
            used[end.cause] = used.get(end.cause, 0) + 1
            assert used[end.cause] <= limits.get_budget(end.cause)
            assert end.cause not in NEVER
            assert 0 < decision <= limits.longest_back_off
            if end.cause != "preempted":
                assert (build_signature(end), progress) not in seen
                seen.append((build_signature(end), progress))


@given(st.lists(ENDS, max_size=12))
def test_a_budget_that_is_left_is_given_to_every_new_failure(ends):
    limits = Limits(retries={c: 99 for c in CAUSES if c not in NEVER})
    retries = Retries(limits)
    farthest = {}
    for end, progress in ends:
        decision = retries.decide_retry(end, progress)
        new = progress > farthest.get(build_signature(end), -1)
        farthest[build_signature(end)] = max(progress, farthest.get(build_signature(end), -1))
        expected = end.cause not in NEVER and (new or end.cause == "preempted")
        assert isinstance(decision, float) == expected


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_the_budget_of_the_table(cause):
    retries = Retries(Limits())
    ends = [retries.decide_retry(RunEnd(1, cause, "so"), progress) for progress in range(200)]
    assert sum(isinstance(end, float) for end in ends) == RETRIES.get(cause, 0)


def test_preemptions_before_any_step_are_retried_ever_more_patiently():
    retries = Retries(Limits(back_off=5.0, longest_back_off=60.0))
    waits = [retries.decide_retry(RunEnd(75, "preempted", "went"), 0) for _ in range(7)]
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert retries.decide_retry(RunEnd(75, "preempted", "went"), 1) == 5.0


def test_the_reason_for_giving_up_is_given_where_a_retry_was_expected():
    retries = Retries(Limits())
    lost = RunEnd(-9, "lost node", "killed")
    assert isinstance(retries.decide_retry(lost, 3), float)
    assert retries.decide_retry(lost, 3) == GiveUp(
        "the same failure occurred twice at the same point"
    )
    assert retries.decide_retry(RunEnd(2, "input", "no key"), 3) == GiveUp("")


def test_a_failure_that_comes_earlier_than_before_has_come_before():
    retries = Retries(Limits())
    cluster = RunEnd(1, "cluster", "no answer")
    assert isinstance(retries.decide_retry(cluster, 9), float)
    assert isinstance(retries.decide_retry(cluster, 8), GiveUp)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"retries": {"lost nodes": 2}}, "no cause 'lost nodes'; did you mean 'lost node'?"),
        ({"retries": {"input": 2}}, "'input' is never retried"),
        ({"retries": {"data": -1}}, "retries.data"),
        ({"max_cost": 0.0}, "max_cost"),
        ({"deadline": -5.0}, "deadline"),
        ({"notify": "mail 'me"}, "No closing quotation"),
        ({"notify": "  "}, "no command given"),
        ({"max_costs": 5.0}, "did you mean 'max_cost'?"),
    ],
)
def test_limits_that_cannot_work_are_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        config.build(Limits, given, "limits")


def test_limits_come_back_from_plain_json():
    limits = Limits(max_cost=5.0, retries={"data": 2}, notify="mail me")
    assert config.build(Limits, limits.model_dump(mode="json"), "attempt") == limits
