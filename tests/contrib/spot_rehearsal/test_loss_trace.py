"""Traces of node losses: valid events, and equality after writing and reading."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_losses import generate_trace

from trainrig.errors import DataError
from trainrig_contrib.spot_rehearsal import loss_trace
from trainrig_contrib.spot_rehearsal.loss_trace import Event
from trainrig_contrib.spot_rehearsal.rehearse import _order_events

HEAD = "second,node,event,notice\n"


def test_a_trace_is_read_as_it_was_written(tmp_path):
    path = str(tmp_path / "storm.csv")
    events = [Event(41.5, "a", "lost", 12.0), Event(60.0, "b", "lost"), Event(95.25, "a", "back")]
    loss_trace.write(path, events)
    assert loss_trace.read(path) == events
    (tmp_path / "storm.jsonl").write_text(
        '{"second": 41.5, "node": "a", "event": "lost", "notice": 12}\n'
        '{"second": 60, "node": "b", "event": "lost"}\n\n'
        '{"second": 95.25, "node": "a", "event": "back", "notice": null}\n'
    )
    assert loss_trace.read(str(tmp_path / "storm.jsonl")) == events
    assert loss_trace.list_nodes(events) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: a trace begins with `second,node,event,notice`"),
        ("a,b\n", "line 1: a trace begins with"),
        (HEAD, "no events"),
        (HEAD + "1,a,lost,\n2,a,lost,\n", "line 3: node a is already lost"),
        (HEAD + "1,a,back,\n", "line 2: node a is already there"),
        (HEAD + "5,a,lost,\n4,b,lost,\n", "line 3: second 4 comes after second 5"),
        (HEAD + "5,a,gone,\n", "line 2: `event` is 'gone'; write lost or back"),
        (HEAD + "five,a,lost,\n", "line 2: `second` is 'five', which is not a number"),
        (HEAD + "nan,a,lost,\n", "line 2: `second` is nan"),
        (HEAD + "-1,a,lost,\n", "line 2: `second` is -1"),
        (HEAD + "5,,lost,\n", "line 2: `node` is empty"),
        (HEAD + "5,a,lost,120\n", "line 2: node a gets the notice of its loss before second 0"),
        (HEAD + "5,a,lost,\n9,a,back,4\n", "line 3: only a lost node can have a notice"),
        (
            HEAD + "5,a,lost,\n9,a,back,\n20,a,lost,15\n",
            "line 4: node a gets the notice of its loss before it is there",
        ),
        ('{"second": 1}\n', "line 1: `node` is empty"),
        ('{"second": 1,\n', "line 1: not a JSON object"),
        (
            '{"second": 1, "node": "a", "event": "lost", "zone": 1}\n',
            "line 1: unknown field `zone`",
        ),
    ],
)
def test_invalid_events_are_refused_with_their_line(tmp_path, text, problem):
    path = tmp_path / "storm.csv"
    path.write_text(text)
    with pytest.raises(DataError) as found:
        loss_trace.read(str(path))
    assert problem in str(found.value)


def test_the_documented_example_is_valid(tmp_path):
    path = tmp_path / "storm.csv"
    path.write_text(re.search(r"\n\n((?:    .*\n)+)", loss_trace.__doc__)[1].replace("    ", ""))
    assert len(loss_trace.read(str(path))) == 2
    path.write_text(HEAD)
    with pytest.raises(DataError) as refused:
        loss_trace.read(str(path))
    path.write_text(HEAD + re.search("`(.*)`", str(refused.value))[1] + "\n")
    assert len(loss_trace.read(str(path))) == 1


def test_a_missing_trace_is_reported(tmp_path):
    with pytest.raises(DataError, match="no such trace"):
        loss_trace.read(str(tmp_path / "none.csv"))


@given(seed=st.integers(0, 2**32), nodes=st.integers(2, 6), seconds=st.floats(1, 500))
def test_a_storm_by_chance_is_a_trace_and_the_same_for_a_seed(
    tmp_path_factory, seed, nodes, seconds
):
    names = [f"n{number}" for number in range(nodes)]
    settings = {"stays": 30.0, "away": 10.0, "notices": (0.0, 15.0)}
    events = generate_trace(seed, names, seconds, **settings)
    assert events == generate_trace(seed, names, seconds, **settings)
    assert set(loss_trace.list_nodes(events)) <= set(names)
    if events:
        path = str(tmp_path_factory.mktemp("storm") / "storm.csv")
        loss_trace.write(path, events)
        assert loss_trace.read(path) == events


def test_a_notice_is_given_before_the_loss_even_if_other_nodes_go_between():
    first = Event(10.0, "a", "lost", 0.0)
    second = Event(12.0, "b", "lost", 5.0)
    assert _order_events([first, second]) == [
        (7.0, second, True),
        (10.0, first, False),
        (12.0, second, False),
    ]
