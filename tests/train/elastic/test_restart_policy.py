import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.retry_policy import GiveUp
from trainrig.train.elastic.restart_policy import (
    Failure,
    HangDetector,
    RestartPolicy,
    WorkerNode,
    find_best_size,
    find_reason_to_leave,
    may_be_freed,
)
from trainrig.train.run_file.worker_settings import Faults, WorkerBounds

A, B, C = (WorkerNode(name, capacity=1) for name in "ABC")
GOING = WorkerNode("B", capacity=1, draining=True)


@pytest.mark.parametrize(
    ("nodes", "allowed", "size"),
    [
        ([A, B], WorkerBounds(1, 2), 2),
        ([A, B, C], WorkerBounds(1, 2), 2),
        ([A], WorkerBounds(1, 2), 1),
        ([A, GOING], WorkerBounds(1, 2), 1),
        ([A, GOING], WorkerBounds(2, 2), None),
        ([], WorkerBounds(1, 4), None),
        ([WorkerNode("D", capacity=4)], WorkerBounds(1, 8), 4),
    ],
)
def test_as_many_workers_as_there_is_lasting_room_for(nodes, allowed, size):
    assert find_best_size(nodes, allowed) == size


@pytest.mark.parametrize(
    ("workers", "used", "stepped", "nodes", "why"),
    [
        (2, "AB", True, [A, B], None),
        (1, "A", True, [A, B], "grow"),
        (1, "A", False, [A, B], None),  # not before it made progress
        (2, "AB", True, [A, B, C], None),  # no more nodes may be excluded
        (2, "AB", True, [A, GOING], "drain"),
        (2, "AB", False, [A, GOING], None),  # otherwise it might never make progress
        (1, "A", True, [A, GOING], None),  # a node that it does not use
        (2, "AB", True, [A], None),  # a lost node ends the attempt anyway
    ],
)
def test_an_attempt_leaves_for_more_nodes_or_off_one_that_is_taken_away(
    workers, used, stepped, nodes, why
):
    assert find_reason_to_leave(workers, frozenset(used), stepped, nodes, WorkerBounds(1, 2)) == why


FAULTS = Faults(hang_seconds=2.0, hang_steps=10.0, start_limit=60.0)


def make_heartbeat(rank=0, count=1, usual=True, seconds=0.1, doing="train"):
    return Heartbeat(rank, (), "A", count, 5, doing, usual, seconds)


def test_a_rank_hangs_when_its_beat_stays_the_same_for_too_long():
    detector = HangDetector(FAULTS, 2, now=0.0)
    assert detector.update({0: make_heartbeat(0), 1: make_heartbeat(1)}, 0.0) is None
    assert detector.update({0: make_heartbeat(0, count=2), 1: make_heartbeat(1)}, 1.9) is None
    hang = detector.update({0: make_heartbeat(0, count=3), 1: make_heartbeat(1)}, 2.1)
    assert hang is not None and (hang.rank, hang.silent, hang.allowed) == (1, 2.1, 2.0)
    assert "rank 1 hangs: no progress for 2.1 s" in str(hang)


def test_slow_steps_are_given_more_time():
    detector = HangDetector(FAULTS, 1, now=0.0)
    slow = {0: make_heartbeat(seconds=3.0)}
    assert detector.update(slow, 0.0) is None
    assert detector.update(slow, 29.9) is None
    assert detector.update(slow, 30.1) is not None


@pytest.mark.parametrize(
    "first",
    [
        make_heartbeat(usual=False),
        make_heartbeat(seconds=None),
        make_heartbeat(usual=False, doing="evaluate"),
    ],
)
def test_the_first_time_of_an_activity_may_include_compilation(first):
    detector = HangDetector(FAULTS, 1, now=0.0)
    assert detector.update({0: first}, 0.0) is None
    assert detector.update({0: first}, 59.0) is None
    assert detector.update({0: first}, 61.0) is not None


def test_a_rank_that_never_says_a_word_hangs_too():
    detector = HangDetector(FAULTS, 2, now=0.0)
    assert detector.update({0: make_heartbeat(count=1)}, 59.0) is None
    hang = detector.update({0: make_heartbeat(count=2)}, 60.5)
    assert hang is not None and hang.rank == 1


@given(st.lists(st.floats(0.01, 1.99), max_size=50))
def test_a_rank_with_progress_never_counts_as_hung(gaps):
    detector = HangDetector(FAULTS, 1, now=0.0)
    now = 0.0
    for count, gap in enumerate(gaps):
        now += gap
        assert detector.update({0: make_heartbeat(count=count)}, now) is None


def make_kill(step=0):
    return Failure("rank 1 died", "Ray", step)


def make_exception(step, what="ValueError: bad row"):
    return Failure(f"rank 0: {what}", "Ray", step, exception=what)


@given(st.integers(0, 6))
def test_so_many_restarts_without_a_new_checkpoint_and_no_more(allowed):
    policy = RestartPolicy(Faults(max_restarts=allowed), step=0)
    verdicts = [policy.decide_after(make_kill(), newest=0) for _ in range(allowed + 1)]
    assert not any(isinstance(verdict, GiveUp) for verdict in verdicts[:-1])
    assert isinstance(verdicts[-1], GiveUp)
    assert f"no progress beyond step 0, attempts: {allowed + 1}" in verdicts[-1].reason


def test_a_new_checkpoint_restores_the_patience():
    policy = RestartPolicy(Faults(max_restarts=1), step=0)
    assert [policy.decide_after(make_kill(step), newest=step) for step in range(1, 50)] == [
        0.0
    ] * 49


def test_the_first_restart_waits_for_nothing_and_each_further_one_longer():
    policy = RestartPolicy(Faults(max_restarts=9, back_off=1.0, longest_back_off=5.0), step=0)
    assert [policy.decide_after(make_kill(), newest=0) for _ in range(6)] == [
        0.0,
        1.0,
        2.0,
        4.0,
        5.0,
        5.0,
    ]


def test_the_same_exception_at_the_same_step_twice_ends_the_run():
    policy = RestartPolicy(Faults(max_restarts=9), step=4)
    assert policy.decide_after(make_exception(6), newest=4) == 0.0
    verdict = policy.decide_after(make_exception(6), newest=4)
    assert isinstance(verdict, GiveUp)
    assert "the same failure at step 6 twice in a row" in verdict.reason
    assert "ValueError: bad row" in verdict.reason


def test_two_failures_are_the_same_whatever_the_numbers_in_them():
    policy = RestartPolicy(Faults(max_restarts=9), step=4)
    policy.decide_after(make_exception(6, "ClusterError: events/0179.0fef4400.jsonl: no"), newest=4)
    again = make_exception(6, "ClusterError: events/0188.ab12.jsonl: no")
    assert isinstance(policy.decide_after(again, newest=4), GiveUp)


@pytest.mark.parametrize(
    "second",
    [make_exception(7), make_exception(6, "OSError: gone"), make_kill(6)],
    ids=["step", "message", "death"],
)
def test_another_failure_or_another_step_is_tried_again(second):
    policy = RestartPolicy(Faults(max_restarts=9), step=4)
    policy.decide_after(make_exception(6), newest=4)
    assert not isinstance(policy.decide_after(second, newest=4), GiveUp)


def test_processes_that_die_at_the_same_step_are_tried_again():
    policy = RestartPolicy(Faults(max_restarts=9), step=4)
    policy.decide_after(make_kill(6), newest=4)
    assert not isinstance(policy.decide_after(make_kill(6), newest=4), GiveUp)


def test_a_failure_before_a_different_one_is_tried_again():
    policy = RestartPolicy(Faults(max_restarts=9), step=4)
    verdicts = [
        policy.decide_after(failure, newest=4)
        for failure in (make_exception(6), make_kill(6), make_exception(6))
    ]
    assert not any(isinstance(verdict, GiveUp) for verdict in verdicts)


def test_memory_that_runs_out_at_the_same_step_twice_is_not_tried_a_third_time():
    policy = RestartPolicy(Faults(max_restarts=9), step=0)
    short = Failure("node 10.0.0.1 ran out of memory (5.7GB of 6GB)", "Ray", 0, memory=True)
    assert policy.decide_after(short, newest=0) == 0.0
    verdict = policy.decide_after(short, newest=0)
    assert isinstance(verdict, GiveUp)
    for named in ("batches.micro_batch", "[training.recompute]", "`trainrig check`", "10.0.0.1"):
        assert named in verdict.reason


def test_memory_that_runs_out_at_another_step_is_tried_again():
    policy = RestartPolicy(Faults(max_restarts=9), step=0)
    policy.decide_after(Failure("no memory", "Ray", 4, memory=True), newest=4)
    assert policy.decide_after(Failure("no memory", "Ray", 9, memory=True), newest=8) == 0.0


def test_damaged_checkpoints_use_up_no_patience():
    policy = RestartPolicy(Faults(max_restarts=0), step=8)
    damaged = Failure("step_00000008: torn", "Ray", 8, damaged=True)
    assert [policy.decide_after(damaged, newest=step) for step in (6, 4, 2)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rooms", "freed"), [((1, 1), False), ((1, 0), True), ((0, 0), True), ((1,), False)]
)
def test_room_that_others_hold_may_be_freed(rooms, freed):
    nodes = [WorkerNode(str(number), capacity, slots=1) for number, capacity in enumerate(rooms)]
    assert may_be_freed(nodes, WorkerBounds(1, 2)) is freed
