import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config
from trainrig.hardware import Hardware
from trainrig.launch.supervise.metered_cost import (
    Kind,
    Spent,
    compute_cost,
    compute_tokens_per_usd,
    list_unpriced,
    split_cost,
)

MADE_UP = {"device": "core", "devices": 1, "vcpus": 1, "memory": 1.0, "as_of": "", "source": ""}
CORE = {"flops": {"float32": 1.0}, "memory": 1.0, "watts": 1.0, "source": ""}
TABLE = config.build(
    Hardware,
    {
        "devices": {"core": CORE},
        "instances": {
            "small": MADE_UP | {"usd": 2.0, "spot_usd": 0.5},
            "large": MADE_UP | {"usd": 10.0},
        },
    },
    "table",
)
SMALL = Kind("cpu", "small", "on-demand")
SMALL_SPOT = Kind("cpu", "small", "spot")
LARGE = Kind("gpu", "large", "on-demand")
LARGE_SPOT = Kind("gpu", "large", "spot")
LAPTOP = Kind("cpu", "laptop", "on-demand")  # labelled as cluster/local.yaml does: not rented
STRANGE = Kind("gpu", "strange", "spot")


@pytest.mark.parametrize(
    ("seconds", "spent"),
    [
        ({}, Spent(0.0, 0.0, 0.0)),
        ({SMALL: 3600.0, SMALL_SPOT: 7200.0}, Spent(3.0, 3.0, 3.0)),
        ({SMALL: 3600.0, LARGE_SPOT: 360.0}, Spent(None, 2.0, 3.0)),
        ({SMALL: 3600.0, LAPTOP: 7200.0}, Spent(2.0, 2.0, 2.0)),
        ({SMALL: 3600.0, STRANGE: 1.0}, Spent(None, 2.0, None)),
        ({SMALL: 3600.0, STRANGE: 0.0}, Spent(2.0, 2.0, 2.0)),
        (None, Spent(None, 0.0, None)),
    ],
)
def test_unknown_prices_make_the_sum_unknown_and_never_smaller(seconds, spent):
    assert compute_cost(seconds, TABLE) == spent


def test_a_limit_is_compared_with_the_upper_bound():
    assert Spent(3.0, 3.0, 3.0).count_against_limit() == 3.0
    assert Spent(None, 2.0, 5.0).count_against_limit() == 5.0
    assert Spent(None, 2.0, None).count_against_limit() == 2.0


KINDS = st.sampled_from([SMALL, SMALL_SPOT, LARGE, LARGE_SPOT, STRANGE])


@given(st.lists(st.tuples(KINDS, st.floats(0, 1e6)), max_size=6))
def test_parts_add_up_and_survive_being_written_down(parts):
    together = sum((compute_cost({kind: seconds}, TABLE) for kind, seconds in parts), Spent())
    back = Spent.from_json(json.loads(json.dumps(together.to_json())))
    assert (back.usd is None) == (together.usd is None)
    assert back.count_against_limit() == pytest.approx(together.count_against_limit(), abs=1e-3)
    if together.at_most is not None:
        assert together.at_least <= together.at_most + 1e-9


def test_machines_without_a_price_are_named():
    kinds = [SMALL, LARGE_SPOT, STRANGE, Kind("", "", "")]
    assert list_unpriced(kinds, TABLE) == ["?/?/?", "gpu/large/spot", "gpu/strange/spot"]


def test_tokens_per_dollar_wants_both():
    assert compute_tokens_per_usd(1000, Spent(0.5, 0.5, 0.5)) == 2000
    assert compute_tokens_per_usd(None, Spent(0.5, 0.5, 0.5)) is None
    assert compute_tokens_per_usd(1000, Spent(None, 0.5, None)) is None
    assert compute_tokens_per_usd(1000, Spent()) is None


def make_event(name, time, **details):
    return {"event": name, "time": time, **details}


def make_steps(attempt, first, count, begin):
    """Return metrics of `count` steps of one second each, the first of which begins at `begin`."""
    return [
        {
            "step": first + n,
            "attempt": attempt,
            "time": begin + n + 1,
            "train/step_seconds": 1.0,
            "train/loss": 1.0,
        }
        for n in range(count)
    ]


def write(folder, events, lines):
    for name, entries in (("events.jsonl", events), ("metrics.jsonl", lines)):
        (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_the_bill_splits_the_cost_by_use(tmp_path):
    """Split the cost of two attempts: one is killed after 6 steps, the next repeats 2."""
    inside = [
        make_event("attempt_started", 10.0, attempt=1),
        make_event("attempt_started", 40.0, attempt=2),
        make_event("checkpoint", 54.0, attempt=2, seconds=1.0, stall_seconds=0.5),
        make_event("attempt_stopped", 56.0, attempt=2),
    ]
    write(tmp_path, inside, make_steps(1, 1, 6, begin=14.0) + make_steps(2, 5, 6, begin=48.0))
    record = [
        make_event("started", 5.0, attempt=1),
        make_event("retried", 21.0, attempt=1, seconds=10.0),
        make_event("started", 31.0, attempt=1),
    ]
    found = split_cost(55.0, 55.0, record, str(tmp_path))  # a dollar a second, from 5.0 to 60.0
    assert found == {
        "useful": 9.5,  # steps 1–4 and 5–10, less the half second of a checkpoint
        "redone": 2.0,
        "waiting": 10.0,
        "start-up": (10 - 5 + 4) + (40 - 31 + 8),
        "stall": 2.5,
        "idle": 5.0,
    }
    assert sum(found.values()) == 55.0


def test_waiting_inside_of_a_try_and_between_tries_is_waiting(tmp_path):
    inside = [
        make_event("attempt_started", 0.0, attempt=1),
        make_event("attempt_failed", 4.0, attempt=1),
        make_event("back_off", 4.0, seconds=3.0),
        make_event("attempt_started", 8.0, attempt=2),
        make_event("attempt_stopped", 20.0, attempt=2),
    ]
    write(tmp_path, inside, make_steps(2, 1, 10, begin=10.0))
    record = [make_event("started", 0.0), make_event("retried", 20.0, seconds=5.0)]
    found = split_cost(25.0, 25.0, record, str(tmp_path))
    assert (found["waiting"], found["start-up"], found["useful"]) == (
        3.0 + 5.0,
        4.0 + 1.0 + 2.0,
        10,
    )


def test_a_bill_adds_up_to_the_cost_even_if_clocks_differ(tmp_path):
    inside = [make_event("attempt_started", 10.0, attempt=1)]
    write(tmp_path, inside, make_steps(1, 1, 90, begin=10.0))
    found = split_cost(8.0, 80.0, [make_event("started", 10.0, attempt=1)], str(tmp_path))
    assert found["useful"] == 8.0 and sum(found.values()) == 8.0


def test_no_bill_without_a_price_or_a_start(tmp_path):
    assert split_cost(None, 10.0, [make_event("started", 1.0)], str(tmp_path)) is None
    assert split_cost(1.0, 10.0, [], str(tmp_path)) is None


def test_a_run_that_never_took_a_step_has_been_idle(tmp_path):
    found = split_cost(1.0, 10.0, [make_event("started", 1.0)], str(tmp_path))
    assert found["idle"] == 1.0 and sum(found.values()) == 1.0
