import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.train.run.progress import Goodput, account_time, measure_goodput


def make_event(name, time, **details):
    return {"event": name, "time": time, **details}


def make_start(attempt, time):
    return make_event("attempt_started", time, attempt=attempt)


def line(step, attempt, time, seconds=1.0):
    return {"step": step, "attempt": attempt, "time": time, "train/step_seconds": seconds}


def make_save(attempt, time, seconds, stall):
    return make_event("checkpoint", time, attempt=attempt, seconds=seconds, stall_seconds=stall)


def make_steps(attempt, first, count, begin):
    """Return `count` steps of one second each, the first of which begins at `begin`."""
    return [line(first + n, attempt, begin + n + 1) for n in range(count)]


def test_an_undisturbed_run_is_start_steps_and_saves():
    events = [
        make_start(1, 100.0),
        make_save(1, 109.0, seconds=2.0, stall=0.5),
        make_event("attempt_stopped", 116.0, attempt=1),
        make_event("finished", 116.0),
    ]
    found = account_time(events, make_steps(1, 1, 10, begin=105.0))
    assert found == Goodput(productive=9.5, restart=5.0, stall=1.5)
    assert found.share == pytest.approx(9.5 / 16)


def test_the_costs_of_a_fault_are_separate():
    events = [
        make_start(1, 0.0),
        make_event("attempt_failed", 10.5, attempt=1),
        make_event("back_off", 10.5, seconds=2.0),
        make_start(2, 13.0),
        make_event("attempt_stopped", 24.0, attempt=2),
    ]
    # Steps 1–6, of which the last two are repeated; the fault comes half a second later.
    lines = make_steps(1, 1, 6, begin=4.0) + make_steps(2, 5, 6, begin=18.0)
    assert account_time(events, lines) == Goodput(
        productive=10.0, lost=2.0, detection=0.5, restart=4.0 + 0.5 + 5.0, waiting=2.0
    )


def test_a_move_to_other_nodes_is_a_restart_without_a_loss():
    events = [
        make_start(1, 0.0),
        make_event("attempt_stopped", 11.0, attempt=1, why="grow"),
        make_start(2, 11.5),
        make_event("attempt_stopped", 20.0, attempt=2),
    ]
    lines = make_steps(1, 1, 6, begin=4.0) + make_steps(2, 7, 4, begin=16.0)
    assert account_time(events, lines) == Goodput(
        productive=10.0, restart=4.0 + 0.5 + 4.5, stall=1.0
    )


def test_waiting_for_nodes_is_nobodys_fault():
    events = [
        make_start(1, 0.0),
        make_event("attempt_failed", 5.0, attempt=1),
        make_event("waiting_for_nodes", 6.0),
        make_start(2, 66.0),
        make_event("attempt_stopped", 70.0, attempt=2),
    ]
    found = account_time(events, make_steps(1, 1, 2, begin=3.0) + make_steps(2, 3, 1, begin=69.0))
    assert (found.waiting, found.restart) == (60.0, 3.0 + 1.0 + 3.0)


@pytest.mark.parametrize("asked", [True, False], ids=["asked to stop", "its driver killed"])
def test_time_without_a_driver_does_not_count(asked):
    end = (
        [make_event("attempt_stopped", 6.0, attempt=1), make_event("run_stopped", 6.0)]
        if asked
        else []
    )
    events = [
        make_start(1, 0.0),
        *end,
        make_start(2, 1000.0),
        make_event("attempt_stopped", 1004, attempt=2),
    ]
    found = account_time(events, make_steps(1, 1, 3, begin=3.0) + make_steps(2, 4, 2, begin=1002.0))
    assert found == Goodput(productive=5.0, restart=3.0 + 2.0, stopped=994.0)
    assert found.share == 0.5


def test_a_late_word_of_an_outlived_worker_counts_no_time_twice():
    events = [
        make_start(1, 0.0),
        make_start(2, 10.0),
        make_save(1, 12.0, seconds=1.0, stall=0.1),
        make_event("attempt_stopped", 20.0, attempt=2),
    ]
    assert account_time(events, make_steps(2, 1, 4, begin=15.0)).wall == 20.0


def test_an_attempt_that_never_stepped_is_all_restart():
    events = [make_start(1, 0.0), make_event("attempt_failed", 7.0, attempt=1), make_start(2, 7.0)]
    assert account_time(events, []) == Goodput(restart=7.0)


def test_a_run_that_has_not_begun_has_no_goodput():
    assert account_time([], []) == Goodput()
    assert Goodput().share == 0.0


@pytest.mark.slow
@given(st.data())
def test_the_parts_add_up_to_the_wall_time_whatever_is_on_record(data):
    time = 100.0
    events = []
    lines = []

    def later(most=20.0):
        nonlocal time
        time += data.draw(st.floats(0.0, most))
        return time

    step = 0
    for attempt in range(1, data.draw(st.integers(1, 5)) + 1):
        events.append(make_start(attempt, later()))
        for _ in range(data.draw(st.integers(0, 6))):
            step = max(1, step + data.draw(st.sampled_from([1, 1, 1, -2])))
            lines.append(line(step, attempt, later(), data.draw(st.floats(0.0, 30.0))))
            if data.draw(st.booleans()):
                seconds = data.draw(st.floats(0.0, 9.0))
                stall = data.draw(st.floats(0.0, seconds))
                events.append(make_save(attempt, later(1.0), seconds, stall))
        end = data.draw(st.sampled_from(["attempt_failed", "attempt_stopped", None]))
        if end:
            events.append(make_event(end, later(), attempt=attempt))
        between = data.draw(st.sampled_from(["back_off", "waiting_for_nodes", "run_stopped", None]))
        if between:
            events.append(make_event(between, later(), seconds=data.draw(st.floats(0.0, 40.0))))
    found = account_time(data.draw(st.permutations(events)), data.draw(st.permutations(lines)))
    own = [e["time"] for e in events if "attempt" in e] + [metric["time"] for metric in lines]
    assert found.wall == pytest.approx(max(own) - min(own))
    assert all(seconds >= 0 for seconds in vars(found).values())


def test_goodput_is_read_from_the_run_folder(tmp_path):
    def lines_of(entries):
        return "".join(json.dumps(entry) + "\n" for entry in entries)

    ended = make_event("attempt_failed", 9.0, attempt=1)
    (tmp_path / "events.jsonl").write_text(lines_of([make_start(1, 0.0), ended]))
    updates = [update | {"train/loss": 1.0} for update in make_steps(1, 1, 4, begin=3.0)]
    (tmp_path / "metrics.jsonl").write_text(lines_of(updates))
    assert measure_goodput(str(tmp_path)) == Goodput(productive=4.0, detection=2.0, restart=3.0)
