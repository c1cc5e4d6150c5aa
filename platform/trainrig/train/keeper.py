"""What runs in a Ray worker: it keeps the process of a rank, and carries its beats.

Nothing here imports torch: a Ray worker is up as soon as Python and Ray are, and the rank's process
comes from a fork server that had imported everything long before.
"""

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from trainrig.train.channel import Done, Place, Raised
from trainrig.train.fork_server import Forked, ForkServer, ProcessDied

RANK = "trainrig.train.rank"
# What a rank needs, and what torch and others would import on the way to the first step (0.8 s).
MODULES = (RANK, "torch._dynamo", "trainrig.train.pretrain", "boto3", "tensorboardX")
MEETING = "TRAINRIG_MEETING"  # the variable with the URL at which the ranks of an attempt meet
ANSWER = 5.0  # s for the post office to take a beat
START = 60.0  # s for an actor with a fork server to be up; one takes about one


class RankDied(Exception):
    """The process of a rank died."""


class RankRaised(Exception):
    """A rank ended with an error, pickled in `error`."""

    def __init__(self, line: str, error: bytes) -> None:
        """`line`: what the error says."""
        super().__init__(line, error)
        self.error = error

    def __str__(self) -> str:
        """What the error says."""
        return str(self.args[0])


def keep(config: Mapping[str, Any]) -> None:
    """Have the rank of this Ray worker do `config["work"]`, until it ends."""
    import ray
    import ray.exceptions

    attempt, control = config["attempt"], config["control"]
    try:
        with contextlib.closing(_forked(config["fork_servers"], config["work"])) as process:
            while not isinstance(said := process.receive(), Done):
                if isinstance(said, Raised):
                    raise RankRaised(said.line, said.error)
                wanted = False
                # Without a post office nobody wants anything; Ray is starting another.
                with contextlib.suppress(ray.exceptions.RayError):
                    wanted = ray.get(control.exchange.remote(attempt, said), timeout=ANSWER)
                process.send(wanted)
    except ProcessDied as died:
        raise RankDied(str(died)) from None


def _forked(servers: Mapping[str, Any], work: bytes) -> Forked:
    """By this node's fork server; by one of our own, if the node has none yet or a dead one."""
    import ray
    import ray.exceptions

    first = (_place(), work)
    there = servers.get(ray.get_runtime_context().get_node_id())
    with contextlib.suppress(ray.exceptions.RayError, ProcessDied):
        if there is not None:
            address = ray.get(there.address.remote(), timeout=START)
            return Forked(address, f"{RANK}:main", first)
    global _own
    _own = ForkServer(*MODULES)
    return Forked(_own.address(), f"{RANK}:main", first)


_own: ForkServer | None = None  # for as long as this process lives


def _place() -> Place:
    import ray
    import ray.train

    context = ray.train.get_context()
    return Place(
        rank=context.get_world_rank(),
        world=context.get_world_size(),
        device=_device(),
        meeting=os.environ[MEETING],
        node=ray.get_runtime_context().get_node_id(),
        keeper=os.getpid(),
    )


def _device() -> int:
    """Ray has given this worker a GPU of its own, and sight of its neighbours'."""
    import ray

    own, visible = ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible.index(str(own[0])) if own and str(own[0]) in visible else 0
