"""All uses of Ray's private API in trainrig, with the reason for each.

Each function documents the public alternative and why it does not suffice.
`tests/ray_runtime/test_ray_private.py` detects private names that a release of Ray has moved, and
private imports in other modules. Only `ray_pools` may have some: the head of a cluster runs that
file without the rest of trainrig.

Imports are local: Ray Train imports pandas, which takes a second.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Node provider of the autoscaler that starts raylets on this machine, but no machines. Public way:
# none; Ray's documentation uses the same provider to test the autoscaler locally.
LOCAL_NODE_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


def find_temporary_folder() -> Path:
    """Return the folder in which Ray creates its temporary folder by default.

    Public way: `RAY_TMPDIR` and a documented default; this function applies both as Ray does.
    """
    from ray._common.utils import get_default_system_temp_dir

    return Path(get_default_system_temp_dir()).absolute()  # type: ignore[no-untyped-call]


def list_draining_nodes() -> Mapping[str, Any]:
    """Return the nodes that are being drained, by node id, with Ray's record of each drain.

    Public way: the State API (`ray.util.state`), which needs the dashboard, which is off.
    """
    from ray._private.state import state

    return state.get_draining_nodes() or {}


def list_free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node, by node id.

    Public way: `ray.available_resources()`, which returns the sum over all nodes.
    """
    from ray._private.state import state

    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return free


def ended_for_memory(node: str, pid: int) -> bool:
    """Return whether Ray killed the worker process `pid` of `node` because memory ran out.

    Public way: OutOfMemoryError, which is raised for a task, but not for an actor that died; or the
    State API, which needs the dashboard, which is off.
    """
    from ray._private.state import state
    from ray.core.generated import common_pb2, gcs_pb2

    table: Any = gcs_pb2.WorkerTableData  # type: ignore[attr-defined]
    memory: int = common_pb2.WorkerExitType.NODE_OUT_OF_MEMORY  # type: ignore[attr-defined]
    for written in state._connect_and_get_accessor().get_worker_table():
        worker = table.FromString(written)
        there = worker.worker_address.node_id.hex() == node and worker.pid == pid
        if there and worker.exit_type == memory:
            return True
    return False


def get_autoscaling_coordinator() -> Any:
    """Return the actor through which Ray's libraries request nodes from the autoscaler.

    The actor sums the requests of all requesters and drops requests that are not renewed. Public
    way: `ray.autoscaler.sdk.request_resources`, where the newest request replaces all others and
    outlives its driver.
    """
    from ray.data._internal.cluster_autoscaler import get_or_create_autoscaling_coordinator

    return get_or_create_autoscaling_coordinator()  # type: ignore[no-untyped-call]


def find_address_and_port() -> tuple[str, int]:
    """Return this node's address and a free port, chosen as Ray Train chooses them.

    Public way: `ray.util.get_node_ip_address()` and a new socket, which ignore the settings by
    which users select the network interface for Ray Train.
    """
    from ray.train._internal.utils import get_address_and_port

    found: tuple[str, int] = get_address_and_port()
    return found


def create_cluster(config_file: str) -> None:
    """Create or update a cluster from `config_file`, as `ray up --yes --no-config-cache` does.

    Public way: the command, which prints in colour. Its cache would lie in the folder for temporary
    files, where other users could read it.
    """
    from ray.autoscaler._private.commands import create_or_update_cluster

    create_or_update_cluster(
        config_file=config_file,
        override_min_workers=None,
        override_max_workers=None,
        no_restart=False,
        restart_only=False,
        yes=True,
        no_config_cache=True,
        use_login_shells=True,
    )


def open_gcs_client(address: str) -> Any:
    """Open a client of the GCS at `address` without joining its cluster. Raises RayError.

    Public way: `ray.init(address=…)`, which starts processes and takes two seconds.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    return GcsClient(address=address)


def read_cluster_id(client: Any) -> str:
    """Return the id of the cluster that the GCS client `client` is connected to, as hex digits.

    A GCS without a store of its own gets a new id whenever it starts. Public way: none.
    """
    return str(client.cluster_id.hex())


def fetch_live_nodes(client: Any, timeout: float) -> list[Any]:
    """Fetch the records of all live nodes with the GCS client `client`. Raises RayError.

    Public way: `ray.nodes()`, which works only in a process that has joined the cluster.
    """
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]

    alive = GcsNodeInfo.GcsNodeState.ALIVE
    return [
        node for node in client.get_all_node_info(timeout=timeout).values() if node.state == alive
    ]


def get_preemption_reason() -> Any:
    """Return Ray's code for draining a node because of its preemption.

    Public way: `ray drain-node`, which takes two seconds and cannot change a deadline.
    """
    from ray.core.generated import autoscaler_pb2

    reasons: Any = autoscaler_pb2.DrainNodeReason  # type: ignore[attr-defined]
    return reasons.Value("DRAIN_NODE_REASON_PREEMPTION")


def make_trainer(train_loop: Callable[[dict[str, Any]], None], backend: Any, **options: Any) -> Any:
    """Return a trainer of Ray Train that runs `train_loop` on each worker.

    Ray documents `DataParallelTrainer` as an API for developers, but its path is not public. Public
    way, which is the fallback: its subclass `TorchTrainer`, which imports torch into this process:
    two seconds and 220 MiB.

    Args:
        train_loop: the function that each worker runs.
        backend: the BackendConfig.
        options: keyword arguments of both classes.
    """
    try:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    except ImportError:
        from ray.train.torch import TorchTrainer

        return TorchTrainer(train_loop, torch_config=backend, **options)
    return DataParallelTrainer(train_loop, backend_config=backend, **options)
