import os
import signal
import socket
from datetime import timedelta

import pytest

from trainrig.parallel import mesh
from trainrig.parallel.mesh import find_local_device, join_group

LONG = timedelta(seconds=30)


@pytest.fixture
def door():
    """Yield a socket bound to a port of this machine that does not listen yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def joined(monkeypatch):
    """Return the list of ranks that torch was asked to let join."""
    asked = []
    monkeypatch.setattr(mesh.dist, "init_process_group", lambda *_, rank, **__: asked.append(rank))
    return asked


def format_rendezvous(door):
    return f"tcp://127.0.0.1:{door.getsockname()[1]}"


def test_an_early_rank_probes_until_the_port_listens(door, joined, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        assert joined == []
        if len(pauses) == 20:
            door.listen()

    monkeypatch.setattr(mesh.time, "sleep", pause)
    join_group(1, 2, format_rendezvous(door), LONG)
    assert joined == [1]
    assert len(pauses) == 20 and pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (mesh.PROBE_SECONDS, mesh.LONGEST_PROBE)


def test_the_listening_rank_probes_no_port(door, joined):
    join_group(0, 2, format_rendezvous(door), LONG)
    assert joined == [0]


def test_torch_reports_a_port_that_never_listens(door, joined):
    join_group(1, 2, format_rendezvous(door), timedelta(0))
    assert joined == [1]


def test_ranks_that_died_fail_one_task_alone(mortal_ranks):
    mortal_ranks(1, "mesh")
    (process,) = mortal_ranks.start(1, "mesh")
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionError)):
        for _ in range(9):  # an answer may have been sent before the death
            mortal_ranks(1, "mesh")
    assert len(mortal_ranks(1, "mesh")) == 1


def test_all_ranks_lie_along_one_axis(ranks):
    alone = {name: (0, 1) for name in ("context", "tensor", "expert", "pipeline")}
    for rank, found in enumerate(ranks(3, "mesh")):
        along = {name: (rank, 3) for name in ("data", "slices", "expert_slices")}
        axes = {"axes": ("data_shard",), "sharding": (3,), "speaks": True}
        assert found == axes | along | alone


@pytest.mark.parametrize(
    ("degrees", "axes", "sharding", "data", "slices"),
    [
        ({"tensor": 2}, ("data_shard", "tensor"), (2,), [0, 0, 1, 1], [0, 0, 1, 1]),
        ({"tensor": 4}, ("data_shard", "tensor"), (1,), [0] * 4, [0] * 4),
        ({"context": 2}, ("data_shard", "context"), (4,), [0, 0, 1, 1], [0, 1, 2, 3]),
        (
            {"context": 2, "tensor": 2},
            ("data_shard", "context", "tensor"),
            (2,),
            [0] * 4,
            [0, 0, 1, 1],
        ),
        ({"expert": 2}, ("data_shard", "expert"), (4,), [0, 0, 1, 1], [0, 1, 2, 3]),
        ({"pipeline": 2}, ("data_shard", "pipeline"), (2,), [0, 0, 1, 1], [0, 0, 1, 1]),
        ({"pipeline": 4}, ("data_shard", "pipeline"), (1,), [0] * 4, [0] * 4),
        (
            {"copies": 2, "pipeline": 2},  # each copy has a whole stage
            ("data_replicate", "data_shard", "pipeline"),
            (2, 1),
            [0, 0, 1, 1],
            [0] * 4,
        ),
        ({"copies": 2}, ("data_replicate", "data_shard"), (2, 2), [0, 1, 2, 3], [0, 1, 0, 1]),
        (
            {"copies": 2, "tensor": 2},  # each copy has a whole part of each layer
            ("data_replicate", "data_shard", "tensor"),
            (2, 1),
            [0, 0, 1, 1],
            [0] * 4,
        ),
        (
            {"copies": 4, "context": 2},  # ranks that share rows hold the same weights
            ("data_replicate", "context", "data_shard"),
            (4, 1),
            [0, 0, 1, 1],
            [0] * 4,
        ),
        (
            {"copies": 4, "expert": 2},
            ("data_replicate", "expert", "data_shard"),
            (4, 1),
            [0, 0, 1, 1],
            [0] * 4,
        ),
        (
            {"copies": 2, "context": 2},  # ranks that share rows hold each other's slices
            ("data_replicate", "data_shard", "context"),
            (2, 2),
            [0, 0, 1, 1],
            [0, 1, 0, 1],
        ),
    ],
)
def test_neighbours_are_a_replica(degrees, axes, sharding, data, slices, ranks):
    """Data is divided among replicas, and one rank of each replica represents it."""
    found = ranks(4, "mesh", **degrees)
    assert [view["sharding"] for view in found] == [sharding] * 4
    kept = found[0]["axes"]
    assert kept == tuple(name for name in axes if name in kept)
    assert [view["data"] for view in found] == [(rank, max(data) + 1) for rank in data]
    assert [view["slices"][0] for view in found] == slices
    assert [view["speaks"] for view in found] == [
        rank == 0 or data[rank] != data[rank - 1] for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("degrees", "slices"),
    [
        ({"expert": 2}, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ({"expert": 4}, [(0, 1)] * 4),
        ({"expert": 2, "copies": 2}, [(0, 1)] * 4),
        ({"expert": 2, "copies": 4}, [(0, 1)] * 4),
    ],
)
def test_experts_are_sliced_over_replicas_alone(degrees, slices, ranks):
    found = ranks(4, "mesh", **degrees)
    assert [view["expert_slices"] for view in found] == slices
    assert [view["expert"] for view in found] == [
        (rank % degrees["expert"], degrees["expert"]) for rank in range(4)
    ]


def test_a_process_without_a_gpu_works_on_its_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert find_local_device().type == "cpu"
