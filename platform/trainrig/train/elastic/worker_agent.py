"""What runs in a Ray worker: it keeps the process of a rank, and carries its beats.

Nothing here imports torch: a Ray worker is up as soon as Python and Ray are, and the rank's process
comes from a fork server that had imported everything long before. A keeper outlives its rank: when
an attempt fails, the ranks of the next are forked at once, and Ray has nothing to start.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from trainrig.processes.fork_server import Forked, ForkServer, ProcessDied
from trainrig.train.elastic.ipc import Done, Place, Raised
from trainrig.train.elastic.messages import End, Order

RANK = "trainrig.train.elastic.rank"
# What a rank needs, and what torch and others would import on the way to the first step (0.8 s).
MODULES = (RANK, "torch._dynamo", "trainrig.train.pretrain", "boto3", "tensorboardX")
MEETING = "TRAINRIG_MEETING"  # the variable with the URL at which the ranks of an attempt meet
ANSWER = 5.0  # s for the post office to take a beat
START = 60.0  # s for an actor with a fork server to be up; one takes about one
AGAIN = 0.2  # s until a post office that was lost is asked again


def keep(config: Mapping[str, Any]) -> None:
    """Have the rank of this Ray worker do `config["work"]` and, when its attempt has failed, what
    is ordered next, until a rank has done its work or the crew is dismissed."""
    control, crew = config["control"], config["attempt"]
    order: Order | None = Order(crew, crew, config["work"], os.environ[MEETING])
    while order:
        end = _kept(order, config["fork_servers"], control)
        if end is None:
            return
        order = _answer(control.next_order, crew, order.attempt, end)


def _kept(order: Order, servers: Mapping[str, Any], control: Any) -> End | None:
    """How the rank of this worker ended, once it is gone; None if it has done its work."""
    place = _place(order.meeting)
    how: str | Raised
    try:
        with contextlib.closing(_forked(servers, place, order.work)) as process:
            threading.Thread(
                target=_end_when_told, args=(process, control, order.attempt), daemon=True
            ).start()
            said = _carry(process, order.attempt, control)
            if isinstance(said, Done):
                return None
            how = said
            process.end()
    except ProcessDied as died:
        how = str(died)
    return End(place.rank, place.node, how, "" if place.rank else meeting_here())


def _carry(process: Forked, attempt: int, control: Any) -> Done | Raised:
    """Beats there and wishes to stop back, until the rank has no more."""
    import ray
    import ray.exceptions

    while not isinstance(said := process.receive(), Done | Raised):
        wanted = False
        # Without a post office nobody wants anything; Ray is starting another.
        with contextlib.suppress(ray.exceptions.RayError):
            wanted = ray.get(control.exchange.remote(attempt, said), timeout=ANSWER)
        process.send(wanted)
    return said


def _end_when_told(process: Forked, control: Any, attempt: int) -> None:
    """A rank that another one left alone may wait for it long."""
    _answer(control.told_to_end, attempt)
    process.ask_to_end()


def _answer(method: Any, *arguments: Any) -> Any:
    """Of a method of the post office, however often Ray has to start that."""
    import ray
    import ray.exceptions

    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.RayActorError:
            time.sleep(AGAIN)


def _forked(servers: Mapping[str, Any], place: Place, work: bytes) -> Forked:
    """By this node's fork server; by one of our own, if the node has none yet or a dead one."""
    import ray
    import ray.exceptions

    first = (place, work)
    there = servers.get(place.node)
    with contextlib.suppress(ray.exceptions.RayError, ProcessDied):
        if there is not None:
            address = ray.get(there.address.remote(), timeout=START)
            return Forked(address, f"{RANK}:main", first)
    global _own
    _own = _own or ForkServer(*MODULES)
    return Forked(_own.address(), f"{RANK}:main", first)


_own: ForkServer | None = None  # for as long as this process lives


def _place(meeting: str) -> Place:
    import ray
    import ray.train

    context = ray.train.get_context()
    return Place(
        rank=context.get_world_rank(),
        world=context.get_world_size(),
        device=_device(),
        meeting=meeting,
        node=ray.get_runtime_context().get_node_id(),
        keeper=os.getpid(),
    )


def meeting_here() -> str:
    """A URL at which the ranks of an attempt could meet: at a port of this node that is free."""
    from ray.train._internal.utils import get_address_and_port

    address, port = get_address_and_port()
    host = f"[{address}]" if ":" in address else address
    return f"tcp://{host}:{port}"


def _device() -> int:
    """Ray has given this worker a GPU of its own, and sight of its neighbours'."""
    import ray

    own, visible = ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible.index(str(own[0])) if own and str(own[0]) in visible else 0
