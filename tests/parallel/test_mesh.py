import socket
from datetime import timedelta

import pytest

from trainrig.parallel import mesh
from trainrig.parallel.mesh import join_group, local_device

LONG = timedelta(seconds=30)


@pytest.fixture
def door():
    """A port of this machine at which nobody listens yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def joined(monkeypatch):
    """The ranks that torch was asked to let join."""
    asked = []
    monkeypatch.setattr(mesh.dist, "init_process_group", lambda *_, rank, **__: asked.append(rank))
    return asked


def rendezvous(door):
    return f"tcp://127.0.0.1:{door.getsockname()[1]}"


def test_a_rank_that_comes_early_knocks_until_somebody_listens(door, joined, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        assert joined == []
        if len(pauses) == 20:
            door.listen()

    monkeypatch.setattr(mesh.time, "sleep", pause)
    join_group(1, 2, rendezvous(door), LONG)
    assert joined == [1]
    assert len(pauses) == 20 and pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (mesh.PROBE_SECONDS, mesh.LONGEST_PROBE)


def test_the_rank_that_listens_itself_knocks_at_no_door(door, joined):
    join_group(0, 2, rendezvous(door), LONG)
    assert joined == [0]


def test_where_nobody_ever_listens_torch_says_so(door, joined):
    join_group(1, 2, rendezvous(door), timedelta(0))
    assert joined == [1]


def test_all_ranks_lie_along_one_axis(ranks):
    assert ranks(3, "mesh") == [(("data",), 3, rank) for rank in range(3)]


def test_a_process_without_a_gpu_works_on_its_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert local_device().type == "cpu"
