import json
import os

import pytest

from trainrig.parallel import flight_recorder


class Recorders:
    """Recorder functions of a torch that was built with NCCL."""

    def __init__(self, nccl, others):
        self._found = {"_dump_nccl_trace_json": nccl, "_dump_fr_trace_json": others}

    def __getattr__(self, name):
        if name not in self._found:
            raise AttributeError(name)
        return lambda includeCollectives: self._found[name]


def test_collectives_of_nccl_are_dumped_where_there_are_some_else_those_of_gloo():
    one = b'{"entries":[{"record_id":0}]}'
    other = b'{"entries":[{"record_id":7}]}'
    none = b"{}"
    assert flight_recorder.dump(Recorders(one, other)) == one
    assert flight_recorder.dump(Recorders(none, other)) == other
    assert flight_recorder.dump(Recorders(none, none)) is None


def test_settings_of_the_environment_are_kept(monkeypatch):
    for name in flight_recorder.NAMES:
        monkeypatch.delenv(name, raising=False)
    flight_recorder.turn_on()
    assert [os.environ.pop(name) for name in flight_recorder.NAMES] == [
        flight_recorder.RECORDED
    ] * 2
    monkeypatch.setenv(flight_recorder.NAMES[1], "17")
    flight_recorder.turn_on()
    assert flight_recorder.NAMES[0] not in os.environ


def test_a_rank_that_waits_for_another_tells_which_collective_it_waits_for(ranks, tmp_path):
    waits, _ = ranks(2, "waits_in_vain", folder=str(tmp_path))
    (event,) = waits
    assert (event["event"], event["rank"], event["doing"]) == ("collectives_dumped", 0, "train")
    assert event["file"] == "collectives/attempt-0003-rank-00000.json"
    entries = json.loads((tmp_path / event["file"]).read_text())["entries"]
    last = entries[-1]
    # Rank 1 never joins this collective while the dump is written.
    assert (last["profiling_name"], last["input_sizes"]) == ("gloo:all_reduce", [[5]])


@pytest.mark.parametrize(
    ("entries", "pending"),
    [
        ([("gloo:all_reduce", "scheduled", True)], None),
        ([("gloo:all_reduce", "scheduled", True), ("gloo:barrier", "scheduled", False)], 1),
        # Enqueued, but the stream has not reached it: this device computes.
        ([("nccl:all_gather", "completed", True), ("nccl:all_gather", "scheduled", False)], None),
        ([("nccl:all_gather", "started", False), ("nccl:broadcast", "scheduled", False)], 0),
    ],
)
def test_a_rank_waits_in_its_first_collective_that_others_have_not_reached(entries, pending):
    names = ("profiling_name", "state", "retired")
    dumped = json.dumps({"entries": [dict(zip(names, entry, strict=True)) for entry in entries]})
    found = flight_recorder.find_pending(dumped.encode())
    assert found == (None if pending is None else entries[pending][0])
