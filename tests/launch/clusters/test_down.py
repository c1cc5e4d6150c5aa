import time

import pytest

from trainrig.errors import ClusterError
from trainrig.launch.clusters.down import Patience, end_all
from trainrig.launch.clusters.machine import Machine

QUICK = Patience(total=1.0, between=0.01, settle=0.05)
HEAD = Machine("i-1", "instance", "aws", "running", pool="head")
WORKER = Machine("i-2", "instance", "aws", "running", pool="cpu")


class Cloud:
    """Machines that lists show as the script says, look by look; its last word holds on."""

    def __init__(self, *looks):
        self.looks, self.ended = list(looks), []

    def machines(self, cluster):
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return look

    def end(self, machines):
        self.ended.append([machine.id for machine in machines])


def ended(cloud, patience=QUICK):
    return end_all(cloud, "aws", patience, lambda text: None), cloud.ended


def test_what_appears_after_the_list_was_empty_is_ended_too():
    assert ended(Cloud([HEAD], [], [WORKER], [WORKER], [])) == ([], [["i-1"], ["i-2"], ["i-2"]])


def test_one_empty_list_is_not_enough():
    cloud = Cloud([])
    began = time.monotonic()
    end_all(cloud, "aws", QUICK, print)
    assert time.monotonic() - began >= QUICK.settle


def test_an_unreadable_list_ends_nothing_and_is_not_zero():
    dark = ClusterError("AWS, us-east-1: no answer")
    assert ended(Cloud(dark, dark, [HEAD], dark, [])) == ([], [["i-1"]])
    cloud = Cloud([HEAD], dark)
    with pytest.raises(ClusterError, match="whether anything is left is not known: AWS"):
        end_all(cloud, "aws", QUICK, print)
    assert cloud.ended == [["i-1"]]


def test_what_does_not_go_is_named():
    assert ended(Cloud([HEAD, WORKER], [WORKER]))[0] == [WORKER]
