import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.launch.supervise.metered_cost import Kind, Meter, to_json

GPU = Kind("gpu", "p5.48xlarge", "spot")
CPU = Kind("cpu", "c7i.8xlarge", "on-demand")


def make_meter(*looks):
    """Return a meter that was read once a second, and found `looks` in turn."""
    clock = {"now": 0.0}
    found = iter(looks)
    meter = Meter(lambda: next(found), lambda: clock["now"])
    for _ in looks:
        clock["now"] += 1.0
        meter.read()
    return meter


def test_nodes_count_from_when_they_are_seen_until_they_are_seen_no_more():
    meter = make_meter([CPU], [CPU, GPU, GPU], [CPU, GPU], [CPU])
    assert meter.seconds == {CPU: 4.0, GPU: 3.0}
    assert meter.nodes == {CPU: 1}


def test_a_look_that_fails_never_counts_as_no_nodes():
    assert make_meter([GPU], None, None, [GPU]).seconds == {GPU: 4.0}
    assert make_meter([GPU], None, None).seconds == {GPU: 3.0}


def test_the_sum_is_unknown_before_the_first_reading():
    assert make_meter(None, None).seconds is None
    assert make_meter(None, None, [GPU, GPU]).seconds == {GPU: 6.0}


def test_a_cluster_that_is_seen_to_be_empty_is_free():
    assert make_meter([], [], [GPU], [GPU]).seconds == {GPU: 1.0}


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1))
def test_failed_readings_bound_the_sum_by_their_neighbours(counts):
    meter = make_meter(*[None if count is None else [GPU] * count for count in counts])
    seen = [count for count in counts if count is not None]
    if seen:
        total = meter.seconds.get(GPU, 0.0)
        assert len(counts) * min(seen) <= total <= len(counts) * max(seen)
    else:
        assert meter.seconds is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, None),
        ({GPU: 1.26, Kind("", "", ""): 2.0}, {"gpu/p5.48xlarge/spot": 1.3, "?/?/?": 2.0}),
    ],
)
def test_events_name_the_kinds_of_machines(seconds, shown):
    assert to_json(seconds) == shown
