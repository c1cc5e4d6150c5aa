"""Everything of Ray that is not public and that trainrig uses, and why.

Each function names what it reaches, for what reason, and the public way that it replaces.
`tests/ray_runtime/test_ray_private.py` finds what a release of Ray has moved, and private imports
anywhere else, but for `ray_pools`, which a cluster's head runs by itself.

Imports are local: Ray Train brings pandas, which takes a second.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

# The provider that starts raylets on this machine in the place of machines. Public way: none; it
# is what Ray's own documentation of testing the autoscaler locally uses.
LOCAL_NODE_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"

# Processes that `ray.init` starts and nothing here asks: the autoscaler, for clusters that grow;
# the dashboard's server, which is off; and what copies logs to a driver that wants none.
UNNEEDED_PROCESSES = ("start_monitor", "start_api_server", "start_log_monitor")


@contextlib.contextmanager
def without_unneeded_processes() -> Iterator[None]:
    """Have `ray.init` start none of UNNEEDED_PROCESSES in the block.

    Each is a Python process that imports for a second or two, on the cores on which the first
    worker does. Public way: `include_dashboard=False` still starts the server, and no option leaves
    out the other two.
    """
    from ray._private.node import Node

    with contextlib.ExitStack() as stack:
        for name in UNNEEDED_PROCESSES:
            stack.enter_context(mock.patch.object(Node, name, lambda self, **arguments: None))
        yield


@contextlib.contextmanager
def shielded_from_signals() -> Iterator[None]:
    """Have the processes that `ray.init` starts in the block ignore what asks the driver to stop.

    `timeout`, Slurm, systemd and a terminal that closes send their signal to a whole process group
    or control group. Ray's processes would end at once, while ranks still save their checkpoint.
    So each gets a session of its own and blocks SIGTERM and SIGHUP, as Ray does with SIGINT; the
    processes that it starts inherit that. Only SIGKILL ends them: Ray's `terminate` becomes `kill`.
    The kernel still ends them with the driver (Ray sets PR_SET_PDEATHSIG). Public way: none.
    """
    from ray._private import services

    class Daemon(services.ConsolePopen):
        def __init__(self, *arguments: Any, preexec_fn: Callable[[], None], **options: Any) -> None:
            def prepare() -> None:
                preexec_fn()
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})

            options |= {"preexec_fn": prepare, "start_new_session": True}
            super().__init__(*arguments, **options)

        def terminate(self) -> None:
            self.kill()

    with mock.patch.object(services, "ConsolePopen", Daemon):
        yield


@contextlib.contextmanager
def without_sigterm_handler() -> Iterator[None]:
    """Have `ray.init` leave the handler of SIGTERM alone in the block.

    Ray's own ends the process as a failure, without a word. Public way: none.
    """
    from ray._private import utils

    with mock.patch.object(utils, "set_sigterm_handler", lambda handler: None):
        yield


@contextlib.contextmanager
def without_clusters() -> Iterator[None]:
    """Have a Ray that starts in the block, and its processes, listen at 127.0.0.1 alone.

    The switch is meant for systems on which Ray makes no clusters. Public way: none; the address
    given to `ray.init` is that of the node, not the one it listens at.
    """
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before = os.environ.get(name), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before[0] is not None:
            os.environ[name] = before[0]
        ray_constants.ENABLE_RAY_CLUSTER = before[1]


def find_temporary_folder() -> Path:
    """Return the folder in which Ray puts its temporary folder where none is named.

    Public way: `RAY_TMPDIR` and a default that the documentation names; this is what Ray makes of
    both.
    """
    from ray._common.utils import get_default_system_temp_dir

    return Path(get_default_system_temp_dir()).absolute()  # type: ignore[no-untyped-call]


def get_local_node() -> Any:
    """What `ray.init` keeps of this machine's node: its processes (`all_processes`), session folder
    and the address of the GCS.

    Public way: `ray.init` returns the session folder, but no processes, which have to be watched
    and ended.
    """
    from ray._private import worker

    return worker._global_node


def filter_driver_output(pass_on: Callable[[str], bool]) -> None:
    """Have Ray print, of what its processes send to the driver, what `pass_on` says yes to; the
    rest goes to a log in the session's folder. Once for a process.

    Of a lost node Ray prints forty lines. Public way: `log_to_driver=False`, which loses what
    users' own code prints in workers.
    """
    from ray._private import worker

    printed = worker.print_to_stdstream
    if getattr(printed, "filtered", False):
        return

    def print_or_log(said: dict[str, Any], ignore_prefix: bool) -> None:
        text = "\n".join(map(str, said["lines"]))
        if pass_on(text):
            printed(said, ignore_prefix)
            return
        with contextlib.suppress(OSError, AttributeError):  # this process has just disconnected
            path = Path(get_local_node().get_logs_dir_path(), f"trainrig-driver-{os.getpid()}.log")
            with path.open("a") as file:
                file.write(f"{text}\n")

    print_or_log.filtered = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = print_or_log  # type: ignore[assignment]


def list_draining_nodes() -> Mapping[str, Any]:
    """Nodes that are being drained, by id.

    Public way: the State API (`ray.util.state`), which goes through the dashboard that is off.
    """
    from ray._private.state import state

    return state.get_draining_nodes() or {}


def list_free_resources() -> Mapping[str, Mapping[str, float]]:
    """What is free on each node, by its id.

    Public way: `ray.available_resources()`, which adds all nodes up.
    """
    from ray._private.state import state

    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return free


def ended_for_memory(node: str, pid: int) -> bool:
    """Whether Ray ended the worker process `pid` of `node` because the node ran out of memory.

    Public way: OutOfMemoryError, which the caller of a task gets, not of an actor that died; or the
    State API, through the dashboard that is off.
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


def remove_placement_groups_of(actor: Any) -> None:
    """Free all that the actor of this handle has reserved.

    Ray keeps what a train controller that died had reserved until its job ends. Public way:
    `placement_group_table()`, which does not say whose a group is.
    """
    from ray._private.state import state
    from ray._raylet import PlacementGroupID
    from ray.core.generated import gcs_pb2
    from ray.util import remove_placement_group
    from ray.util.placement_group import PlacementGroup

    table: Any = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
    for written in state._connect_and_get_accessor().get_placement_group_table():
        group = table.FromString(written)
        own = group.creator_actor_id == actor._actor_id.binary()
        if own and group.state != table.REMOVED:
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))


def get_autoscaling_coordinator() -> Any:
    """The actor through which Ray's libraries ask its autoscaler for nodes.

    It adds up the requests of all who ask, and forgets whoever falls silent. Public way:
    `ray.autoscaler.sdk.request_resources`, where the newest request takes the place of all
    others and stays when its driver is dead.
    """
    from ray.data._internal.cluster_autoscaler import get_or_create_autoscaling_coordinator

    return get_or_create_autoscaling_coordinator()  # type: ignore[no-untyped-call]


def find_address_and_port() -> tuple[str, int]:
    """This node's address, and a port of it that is free.

    Public way: `ray.util.get_node_ip_address()` and a socket of one's own: Ray Train's order of
    looking for interfaces is what its users' settings apply to.
    """
    from ray.train._internal.utils import get_address_and_port

    found: tuple[str, int] = get_address_and_port()
    return found


def died_of_health_check(error: BaseException) -> bool:
    """Whether Ray Train found a worker dead, where `error` is what it says of it.

    Public way: none; the text of the error alone.
    """
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    return isinstance(error, WorkerHealthCheckFailedError)


def create_cluster(config_file: str) -> None:
    """What `ray up --no-config-cache` does with the file.

    Public way: that command, which asks and colours; its cache lies in the folder for temporary
    files, for whoever reads that.
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
    """A client of the GCS at `address`, without joining its cluster. Raises RayError.

    Public way: `ray.init(address=…)`, which starts processes and takes two seconds.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    return GcsClient(address=address)


def fetch_live_nodes(client: Any, timeout: float) -> list[Any]:
    """The records of the nodes that are alive, by a client of the GCS. Raises RayError.

    Public way: `ray.nodes()`, for a process that has joined the cluster.
    """
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]

    alive = GcsNodeInfo.GcsNodeState.ALIVE
    return [
        node for node in client.get_all_node_info(timeout=timeout).values() if node.state == alive
    ]


def get_preemption_reason() -> Any:
    """The reason for draining a node that a cloud takes back.

    Public way: `ray drain-node`, a process of two seconds that takes no deadline twice.
    """
    from ray.core.generated import autoscaler_pb2

    reasons: Any = autoscaler_pb2.DrainNodeReason  # type: ignore[attr-defined]
    return reasons.Value("DRAIN_NODE_REASON_PREEMPTION")


class _NoBarrier:
    """In place of Ray Train's actor at which workers wait for each other to report: ours do not.

    It would take a process of each worker group, which starts with the worker agents and never
    rests: on two cores two worker agents were up after 2.1 s instead of 1.5.
    """

    def options(self, **options: Any) -> "_NoBarrier":
        return self

    def remote(self, **arguments: Any) -> str:
        return "no barrier"  # something must be there


@contextlib.contextmanager
def order_workers(order: Callable[[list[str]], list[int]]) -> Iterator[None]:
    """Have Ray Train's workers of this process become ranks in the `order` that their nodes' ids
    ask for, given node by node as Ray puts them.

    Public way: none. Ray makes one placement group of as many equal bundles as there are workers,
    and numbers workers by node and GPU.
    """
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    name = "_sort_workers_by_gpu_id_grouped_by_node"
    sort = getattr(WorkerGroup, name)

    def sort_workers(workers: list[Any], _first_id: str | None = None) -> list[Any]:
        found = sort(workers, _first_id)
        return [found[number] for number in order([each.metadata.node_id for each in found])]

    with mock.patch.object(WorkerGroup, name, staticmethod(sort_workers)):
        yield


def fit_in_this_process(
    train_loop: Callable[[dict[str, Any]], None],
    settings: Mapping[str, Any],
    order: Callable[[list[str]], list[int]],
    **options: Any,
) -> None:
    """Ray Train's `fit` of `train_loop`, with the controller in this process. Raises what Ray does.

    `settings` go to `train_loop`; `order`: as `order_workers` has it; `options` are those of
    `DataParallelTrainer`.

    In Ray's own way each attempt begins by starting a process for its controller and another to
    clean up after it, which a run that lost a worker would wait for. Public way:
    `DataParallelTrainer.fit()`.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import (
        PlacementGroupCleanerCallback,
    )
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2._internal.execution.worker_group import state, worker_group
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.train.v2.api.result import Result

    class SilentFixedScaling(FixedScalingPolicy):
        """Asks Ray's autoscaler for nothing: the run does, for all that it would like to have."""

        def after_controller_start(self, train_run_context: Any) -> None:
            """Say nothing."""

        def _maybe_send_resource_request(self) -> None:
            pass

    class InProcessTrainer(DataParallelTrainer):
        def _initialize_and_run_controller(self, **arguments: Any) -> Result:
            policy = SilentFixedScaling(self.scaling_config)  # type: ignore[arg-type]
            controller = TrainController(**arguments | {"scaling_policy": policy})
            asyncio.run(controller.run())  # type: ignore[no-untyped-call]
            return controller.get_result()

        def _create_default_callbacks(self) -> list[Any]:
            """Without those that start processes for nothing.

            The driver removes what a failed attempt leaves reserved, and no data comes through Ray.
            """
            idle = (PlacementGroupCleanerCallback, DatasetsCallback)
            every = super()._create_default_callbacks()
            return [each for each in every if not isinstance(each, idle)]

    with (
        order_workers(order),
        mock.patch.object(worker_group, "SynchronizationActor", _NoBarrier()),
        mock.patch.object(state, "_shutdown_sync_actor", lambda sync_actor: None),
    ):
        InProcessTrainer(train_loop, train_loop_config=dict(settings), **options).fit()


def find_train_session_folder() -> str:
    """Where Ray Train keeps its own record when it is told no place: of use to nobody here.

    Public way: `RunConfig(storage_path=None)`, which makes a folder in the user's home.
    """
    from ray.train.constants import _get_ray_train_session_dir

    folder: str = _get_ray_train_session_dir()
    return folder
