"""The Ray that a stage runs on, and splits mapped over it by Ray Data.

Both stages that cut their work into splits (curate, tokenize) need the same forty lines, so they
stand here once. What travels through Ray is the split's name and task and its name back: pages
and tokens never enter the object store.
"""

import contextlib
import itertools
import json
import logging
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainrig import errors
from trainrig.errors import ClusterError, ClusterLost, ConfigError, Unfinished
from trainrig.processes.home import ensure_home
from trainrig.processes.stop_signals import StopRequest, list_stop_signals
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_local import (
    LOOK_AT_RAY,
    Joined,
    Session,
    end_own,
    enter,
    leave,
    raise_if_lost,
    send_known_words_to_log,
    whole_or_nothing,
)
from trainrig.ray_runtime.ray_pools import (
    Need,
    NodePool,
    build_cpu_selector,
    find_capacity,
    find_pools,
)
from trainrig.ray_runtime.session_folder import RAY, sweep
from trainrig.ray_runtime.start_checks import check_machine
from trainrig.splits import Phase, Split, Work

log = logging.getLogger(__name__)
# Each must be set before Ray is imported or started; what the user has set stays.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # else whoever reaches the port commands the machine
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else threads of a driver that ends start another
    "RAY_DEDUP_LOGS": "0",  # merges lines that differ only in digits
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # its C++ prints warnings about itself over our progress
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # do not hide GPUs from tasks that ask for none
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # s; 2.0 by default: how soon a dead worker is seen
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",  # s; for CPUs that ought to be free
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # ends a run at a drain's deadline; we move before
    "RAY_health_check_period_ms": "500",  # with the next: a dead node is known in about 2 s, not 15
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
}
# Of a Ray that is started for this process alone: what it would measure of itself, and copy of its
# logs, for nobody. It would take 1.3% of a core.
UNWATCHED = {
    "RAY_enable_metrics_collection": "0",
    # s; by default, 60 s after a GCS died Ray ends its driver, which has begun another: a client
    # of the old one stays in it. Milliseconds must fit 31 bits.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "2000000",
    "RAY_prestart_worker_first_driver": "0",  # workers without our environment: nobody takes them
    "RAY_event_stats": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",  # 5,000 by default
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # else it looks for files ten times a second,
    "LOG_NAME_UPDATE_INTERVAL_S": "3600",  # and not this often
}
# Workers × threads ≤ cores; and with one thread the order of every sum is fixed.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is not deterministic without, and torch refuses
}
TOKEN = Path("~/.ray/auth_token")  # where Ray keeps a user's own, and makes it if there is none
OBJECT_STORE_BYTES = 256 * 2**20  # paths and counts only: far less is ever used

_Row = TypeVar("_Row")

Progress = Callable[[int, int], None]
"""Called with (splits done, splits in all) as a phase advances."""


def connect(workers: int, what: str) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local one; once a process.

    Raises ConfigError if `workers` one-CPU workers (of `what`, for the message) do not fit, not
    even with what the cluster's autoscaler may bring.
    """
    join()
    pools = find_pools()
    check_fit(workers, {"CPU": 1}, what, pools, build_cpu_selector(pools))


def join() -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local one; once a process."""
    address = os.environ.get("RAY_ADDRESS", "local")
    alone = address == "local"
    ensure_home()
    for name, value in (ENVIRONMENT | (UNWATCHED if alone else {})).items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return
    leave()  # what somebody has shut down
    sweep()
    if alone:
        check_machine()
    try:
        with _close_stderr(), _hold_stop_signals(), _alone() if alone else _joining() as folder:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": WORKER_ENVIRONMENT},
                **(_build_local_options(folder) if folder else {}),
            )
            enter(Session.of_this_process(folder) if folder else Joined.of_this_process())
    except ConnectionError as error:
        raise ClusterError(f"RAY_ADDRESS={address}: no Ray cluster answers: {error}") from None
    _keep_token()
    send_known_words_to_log()


@contextlib.contextmanager
def _alone() -> Iterator[Path]:
    """Have a Ray that starts in the block start whole or not at all, in the private folder that the
    block is given, and reachable at 127.0.0.1 alone."""
    with ray_private.without_clusters(), whole_or_nothing() as folder:
        yield folder


@contextlib.contextmanager
def _joining() -> Iterator[None]:
    """Leave the Ray that the block joins if that may not be used. Raises what the block does."""
    import ray

    try:
        yield
    except ConfigError:
        ray.shutdown()
        raise


@contextlib.contextmanager
def _close_stderr() -> Iterator[None]:
    """Ray's C++ announces its log level there, past Python; what goes wrong it raises."""
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
    """Hold a SIGTERM or SIGHUP back while the block runs; then it is as if it had come now.

    Ray would put in handlers of its own, which end the process as a failure. And what a handler of
    ours raised in the midst of its start would leave processes behind. A second request does not
    wait.
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
        with ray_private.without_sigterm_handler():
            yield
    finally:
        restore()
        if came:
            signal.raise_signal(came[0])


def _keep_token() -> None:
    """Let nobody else read the token that Ray makes: who has it commands all that this user runs.

    Ray leaves it for all users of the machine to read.
    """
    with contextlib.suppress(OSError):  # there is none, or it is another's
        TOKEN.expanduser().chmod(0o600)


def _build_local_options(folder: Path) -> dict[str, Any]:
    """Return the options of `ray.init` for a Ray in the private `folder`."""
    return {
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(folder / RAY),
    }


def check_fit(
    workers: int,
    need: Need,
    what: str,
    pools: Sequence[NodePool] | None,
    selector: Mapping[str, str] | None = None,
) -> None:
    """Raise ConfigError if `workers` (of `what`, for the message) that take `need` each will never
    fit the nodes with the labels of `selector`; `pools`: what may come."""
    found = find_capacity(need, selector or {}, pools)
    if workers <= found.live or found.later is None or workers <= found.later:
        return
    each = " and ".join(f"{count:g} {name}" for name, count in need.items())
    asked = f"{what}: {workers} workers of {each} each, but "
    if not pools:
        raise ConfigError(
            f"{asked}Ray has {_describe_workers(found.live, need)}; set workers = {found.live} or "
            "fewer, or add nodes"
        )
    raise ConfigError(
        f"{asked}the nodes that may come hold {found.later} ({'; '.join(map(str, pools))}); set "
        f"workers = {found.later} or fewer, or let a pool have more nodes"
    )


def _describe_workers(workers: int, need: Need) -> str:
    return f"{workers} logical CPUs" if list(need) == ["CPU"] else f"room for {workers}"


def map_splits(
    phase: Phase,
    splits: Sequence[Split],
    workers: int,
    progress: Progress | None = None,
    brief: bool = False,
) -> None:
    """Do what `phase` has left of `splits`, `workers` at a time on Ray Data; 0: in this process.

    `brief`: one of many passes of tenths of a second, which setting up Ray Data would outweigh: by
    bare tasks. The first error of a split ends the phase; splits that were done stay done.
    """
    advance = progress or (lambda done, all_: None)
    while left := phase.find_unfinished(splits):
        done = len(splits) - len(left)
        advance(done, len(splits))
        try:
            for _ in _wait_for_splits(phase, left, workers, brief):
                done += 1
                advance(done, len(splits))
        except ClusterLost as lost:
            if not end_own():
                again = "what was done stays done, and the same command goes on from there"
                raise Unfinished(f"{lost}; {again}") from None
            log.warning("%s; another is started, for what is left", lost)
            join()
        else:
            return
    advance(len(splits), len(splits))


def _wait_for_splits(
    phase: Phase, left: Sequence[Split], workers: int, brief: bool
) -> Iterator[str]:
    """The names of `left`, as each is done."""
    if not workers:
        return _run_in_process(phase, left)
    return (_run_by_tasks if brief else _run_by_ray_data)(phase, left, workers)


def _run_in_process(phase: Phase, left: Sequence[Split]) -> Iterator[str]:
    if left:
        work = phase.make_work()
        for split in left:
            phase.do(work, split)
            yield split.name


def _run_by_ray_data(phase: Phase, left: Sequence[Split], workers: int) -> Iterator[str]:
    if not left:
        return
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what matters is raised below
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.label_selector = _build_selector() or None
    # All are asked for at once: Ray's autoscaler starts nodes for what waits, and by its budget
    # Ray Data would let wait what fits the nodes that are up.
    context.op_resource_reservation_enabled = False
    rows = [_make_row(split) for split in left]
    # Tasks, not actors: Ray's processes live on from phase to phase, with all that they imported.
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        _do_split,  # type: ignore[arg-type] # a function with more arguments, which follow
        fn_args=(phase, uuid.uuid4().hex),
        compute=ray.data.TaskPoolStrategy(size=min(workers, len(rows))),
        num_cpus=1,
    )
    yield from _iterate_names(_iterate_in_thread(done.iter_rows))


def _run_by_tasks(phase: Phase, left: Sequence[Split], workers: int) -> Iterator[str]:
    if not left:
        return
    import ray

    do: Any = ray.remote(_do_split).options(num_cpus=1, label_selector=_build_selector())
    shared, call = ray.put(phase), uuid.uuid4().hex

    def rows() -> Iterator[dict[str, Any]]:
        to_go, running = iter(left), list[Any]()
        while True:
            for split in itertools.islice(to_go, workers - len(running)):
                running.append(do.remote(_make_row(split), shared, call))
            if not running:
                return
            (done,), running = ray.wait(running)
            yield (row := ray.get(done))
            if row["problem"]:
                return

    yield from _iterate_names(_iterate_in_thread(rows))


def _build_selector() -> dict[str, str]:
    """Of the nodes for splits."""
    return build_cpu_selector(find_pools())


def _make_row(split: Split) -> dict[str, Any]:
    """A split, as it travels."""
    return {"name": split.name, "task": json.dumps(dict(split.task))}


def _iterate_names(done: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Of splits that were done; raises the first error among them."""
    for row in done:
        if row["problem"]:
            raise getattr(errors, row["kind"])(row["problem"])
        yield row["name"]


def _iterate_in_thread(iterate: Callable[[], Iterable[_Row]]) -> Iterator[_Row]:
    """What `iterate` gives, made in a thread of its own, so that a signal finds this one waiting.

    A handler's exception is raised wherever the main thread happens to be, and Ray's own code
    swallows some there: a driver that was told to stop then waited for ever (1 run in 12).
    """
    results: queue.SimpleQueue[tuple[_Row | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            for row in iterate():
                results.put((row, None))
            results.put((None, None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name="splits", daemon=True).start()
    while True:
        try:
            row, error = results.get(timeout=LOOK_AT_RAY)
        except queue.Empty:
            raise_if_lost()
            continue
        if error is not None:
            raise_if_lost(surely=True)
            raise error
        if row is None:
            return
        yield row


_loaded: dict[str, Work] = {}  # in a process of Ray's: of the last call that it did a split of


def _load_work(call: str, make_work: Callable[[], Work]) -> Work:
    """What `make_work` loaded, kept from one split of a `call` to the next."""
    if call not in _loaded:
        _loaded.clear()  # first, as the next may be as large
        _loaded[call] = make_work()
    return _loaded[call]


def _do_split(row: Mapping[str, Any], phase: Phase, call: str) -> dict[str, Any]:
    """Do one split of a phase; `call` is the name of this call of `map_splits`.

    An error that trainrig foresees goes home as a row: Ray would wrap it in pages of traceback.
    """
    split = Split(name=row["name"], task=json.loads(row["task"]))
    try:
        work = _load_work(call, phase.make_work)  # here, as it may raise as well
        phase.do(work, split)
    except errors.TrainrigError as error:
        return {"name": split.name, "problem": str(error), "kind": type(error).__name__}
    return {"name": split.name, "problem": "", "kind": ""}
