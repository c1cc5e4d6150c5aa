"""Connection to the Ray cluster that stages run in, or the start of a local one."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainrig.errors import ClusterError, ClusterReplaced, ConfigError
from trainrig.processes.child_process import ensure_home
from trainrig.processes.stop_signals import StopRequest, list_stop_signals
from trainrig.ray_runtime import ray_local, ray_private, worker_space
from trainrig.ray_runtime.session_folder import RAY, sweep
from trainrig.ray_runtime.start_checks import check_machine

log = logging.getLogger(__name__)
# Ray's messages about lost nodes and processes, as a pattern.
SAID_BETTER = (
    "Raylet is terminated|has been marked dead because|"
    "A worker died or was killed while executing a task"
)
AUTH_MODE = "RAY_AUTH_MODE"
# Variables that must be set before Ray is imported or started. Values that the user has set stay.
ENVIRONMENT = {
    AUTH_MODE: "token",  # without a token, anyone who reaches the port controls the machine
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise threads of an ending driver start another Ray
    # Ray prints forty lines for a lost node to standard output. SKIP drops messages that trainrig
    # words better, and ALLOW passes all others unchanged: Ray would merge messages with different
    # digits.
    "RAY_DEDUP_LOGS_SKIP_REGEX": SAID_BETTER,
    "RAY_DEDUP_LOGS_ALLOW_REGEX": rf"(?s)\A(?!.*(?:{SAID_BETTER}))",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # Ray's C++ prints internal warnings over the progress
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # do not hide GPUs from tasks that ask for none
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # s until a dead worker is found; default 2.0
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",  # s; the CPUs should be free
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the watcher ends runs too late
    "RAY_health_check_period_ms": "500",  # a dead node is found in about 2 s, not 15
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
}
# Variables for a local Ray, which turn off metrics and log copying that trainrig does not use. Both
# would take 1.3% of a core.
UNWATCHED = {
    "RAY_enable_metrics_collection": "0",
    # In s. By default, Ray ends the driver 60 s after its GCS died, although the driver has started
    # another Ray by then: a client of the old GCS stays in the process. The value in milliseconds
    # must fit 31 bits.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "2000000",
    "RAY_prestart_worker_first_driver": "0",  # lacking the environment, they stay unused
    "RAY_event_stats": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",  # 5,000 by default
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # otherwise it scans for files 10 times a second
    "LOG_NAME_UPDATE_INTERVAL_S": "3600",  # s between two scans for log files
}
# One thread per worker keeps workers × threads ≤ cores, and fixes the order of every sum.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # torch requires it for deterministic cuBLAS
}
TOKEN = Path("~/.ray/auth_token")  # the user's token, which Ray creates if it is missing
# Variable with the id of the only cluster that may be joined. A job supervisor sets it.
CLUSTER = "TRAINRIG_CLUSTER"
# Ray's switch for clusters on Windows and macOS. With 0, Ray uses 127.0.0.1 as the machine's
# address and listens there alone.
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
OBJECT_STORE_BYTES = 256 * 2**20  # ample, because the store holds paths and counts only


def connect(workers: int, what: str, models: bool = False) -> None:
    """Connect this process to Ray as `join` does, and wait until the workers fit the cluster.

    Raises ConfigError if they never fit, even with all nodes that the autoscaler may start, and
    ClusterError if nodes that may join a cluster do not. `what` names the workers in messages;
    `models`: whether they load a model, and so take a GPU where there are some.
    """
    join()
    worker_space.wait_for_workers(workers, what, models)


def join() -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local one, unless already connected.

    Raises ClusterReplaced if another cluster than that of the environment variable CLUSTER answers,
    and ConfigError if a local Ray could not be protected.
    """
    address = os.environ.get("RAY_ADDRESS", "local")
    alone = address == "local"
    imported = sys.modules.get("ray")
    if alone and imported and not imported.is_initialized() and AUTH_MODE not in os.environ:
        raise ConfigError(
            f"Ray was imported when {AUTH_MODE} was not set, so it has no token, and anyone who "
            f"reaches its ports would control this machine; set {AUTH_MODE}=token before `import "
            "ray`, call `ray.init()` yourself, or import Ray after the first call of trainrig"
        )
    ensure_home()
    for name, value in (ENVIRONMENT | (UNWATCHED if alone else {})).items():
        os.environ.setdefault(name, value)
    with _use_loopback() if alone else contextlib.nullcontext():
        _join(address)


def _join(address: str) -> None:
    """Join the cluster at `address`, or start a local one; see `join`."""
    import ray

    alone = address == "local"
    if ray.is_initialized():
        return
    ray_local.leave()  # removes a Ray that other code has shut down
    sweep()
    if alone:
        check_machine()
    try:
        if CLUSTER in os.environ and not alone:
            _check_cluster(address, os.environ[CLUSTER])
        start = ray_local.whole_or_nothing() if alone else _joining()
        with _close_stderr(), _hold_stop_signals(), start as folder:
            addresses = ray_local.init_ray(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": WORKER_ENVIRONMENT},
                **(_build_local_options(folder) if folder else {}),
            )
            ray_local.enter(
                ray_local.Session.read_current(folder, addresses)
                if folder
                else ray_local.Joined.read_current(addresses)
            )
    except ConnectionError as error:
        raise ClusterError(f"RAY_ADDRESS={address}: no Ray cluster answers: {error}") from None
    _keep_token()


def _check_cluster(address: str, wanted: str) -> None:
    """Raise ClusterReplaced unless the cluster at `address` has the id `wanted`.

    Raises ConnectionError if none answers. The check joins nothing.
    """
    import ray.exceptions

    try:
        found = ray_private.HeadClient(address).read_cluster_id()
    except ray.exceptions.RayError as error:
        raise ConnectionError(error) from None
    if found is not None and found != wanted:
        raise ClusterReplaced(
            f"RAY_ADDRESS={address}: the cluster of this run is gone, and another one answers at "
            f"its address (id {found[:12]}, not {wanted[:12]}); submit the run again to continue "
            "there"
        )


@contextlib.contextmanager
def _use_loopback() -> Iterator[None]:
    """Make a Ray that is imported and started in the block listen at 127.0.0.1 only.

    Ray reads the variable when it is imported, and its processes read it when they start. A program
    that has imported Ray before gets a warning, because that Ray listens on the network.
    """
    global _imported_on_loopback
    before = os.environ.get(LOOPBACK)
    imported = sys.modules.get("ray")
    if imported is None or before == "0":
        _imported_on_loopback = True
    elif not _imported_on_loopback and not imported.is_initialized():
        log.warning(
            "Ray was imported before trainrig could restrict it to this machine, so it listens on "
            "the network, and its token protects it; call trainrig before `import ray`"
        )
        yield
        return
    os.environ[LOOPBACK] = "0"
    try:
        yield
    finally:
        os.environ.pop(LOOPBACK)
        if before is not None:
            os.environ[LOOPBACK] = before


_imported_on_loopback = False  # True if Ray read LOOPBACK as 0 when it was imported


@contextlib.contextmanager
def _joining() -> Iterator[None]:
    """Disconnect from the Ray that the block joins if the block raises ConfigError."""
    import ray

    try:
        yield
    except ConfigError:
        ray.shutdown()
        raise


@contextlib.contextmanager
def _close_stderr() -> Iterator[None]:
    """Discard writes to standard error in the block, where Ray's C++ prints its log level.

    Errors are not lost, because Ray raises them.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


@contextlib.contextmanager
def _hold_stop_signals() -> Iterator[None]:
    """Delay a SIGTERM or SIGHUP until the end of the block.

    If a handler of trainrig raised during Ray's start, processes would be left behind. A second
    request takes effect as soon as a local Ray is up, and a third one at once.
    """
    before = {number: signal.getsignal(number) for number in list_stop_signals()}
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(before[signal.SIGTERM]):
        yield
        return
    came = list[int]()
    request = StopRequest()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: Any) -> None:
        if request.is_repeat(number):
            return
        if came:
            restore()
            signal.raise_signal(number)
        came.append(number)

    for number in before:
        signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
        if came:
            signal.raise_signal(came[0])


def _keep_token() -> None:
    """Make Ray's token readable by this user only.

    Ray creates the token readable by all users of the machine, and anyone with the token controls
    all Ray processes of this user.
    """
    with contextlib.suppress(OSError):  # the file is missing or belongs to another user
        TOKEN.expanduser().chmod(0o600)


def _build_local_options(folder: Path) -> dict[str, Any]:
    """Return the options of `ray.init` for a Ray in the private `folder`."""
    return {
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(folder / RAY),
    }
