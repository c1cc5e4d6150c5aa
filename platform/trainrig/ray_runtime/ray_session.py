"""Connection to Ray, and `map_splits`, which processes the splits of a stage on Ray Data.

The stages that divide their work into splits (curate, tokenize) share this code. Only the name and
task of a split are sent to a worker, and only its name comes back: pages and tokens never enter the
object store.
"""

import collections
import contextlib
import dataclasses
import json
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainrig import errors
from trainrig.errors import ClusterError, ClusterLost, ClusterReplaced, ConfigError, Unfinished
from trainrig.processes.child_process import ensure_home
from trainrig.processes.stop_signals import StopRequest, list_stop_signals
from trainrig.ray_runtime import ray_local, ray_private, worker_space
from trainrig.ray_runtime.crash_search import find_crashing_record
from trainrig.ray_runtime.session_folder import RAY, sweep
from trainrig.ray_runtime.start_checks import check_machine
from trainrig.splits import PROBED, Phase, Split, Work

log = logging.getLogger(__name__)
# Ray's messages about lost nodes and processes, as a pattern.
SAID_BETTER = (
    "Raylet is terminated|has been marked dead because|"
    "A worker died or was killed while executing a task"
)
# Variables that must be set before Ray is imported or started. Values that the user has set stay.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # without a token, anyone who reaches the port controls the machine
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
TRIES = 3  # times that the process of a split may be killed before the reason is searched for
NODES = 5  # nodes that a split may lose before it counts as the reason
MOST_CRASHED = 10  # records of a split that are left out; more of them point to the machine
# Variable with the id of the only cluster that may be joined. A job supervisor sets it.
CLUSTER = "TRAINRIG_CLUSTER"
# Ray's switch for clusters on Windows and macOS. With 0, Ray uses 127.0.0.1 as the machine's
# address and listens there alone.
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
SPLITS_THREAD = "splits"  # name of the thread that waits for splits
OBJECT_STORE_BYTES = 256 * 2**20  # ample, because the store holds paths and counts only

_Row = TypeVar("_Row")

Progress = Callable[[int, int], None]
"""Called with (splits done, splits in all) as a phase advances."""


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

    Raises ClusterReplaced if another cluster than that of the environment variable CLUSTER answers.
    """
    address = os.environ.get("RAY_ADDRESS", "local")
    alone = address == "local"
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


def map_splits(
    phase: Phase,
    splits: Sequence[Split],
    workers: int,
    progress: Progress | None = None,
    brief: bool = False,
    models: bool = False,
) -> None:
    """Process the unfinished `splits` of `phase`, `workers` at a time.

    Splits run on Ray Data, or in this process if `workers` is 0. A `brief` phase takes tenths of a
    second, less than the setup of Ray Data, and runs as plain Ray tasks instead. The first error of
    a split ends the phase; splits that are done stay done. `progress` is called after each split.
    `models`: whether the workers load a model; they then run as `worker_space.find_place` says.

    A split whose process is killed is tried TRIES times. In a divisible phase, the record that
    kills is then searched for and left out. Raises ClusterError if there is no such record. With 0
    workers the record kills this process.

    If a local Ray is lost, another one is started for the splits that are left. Raises Unfinished
    if a joined cluster is lost.
    """
    advance = progress or (lambda done, all_: None)
    while left := phase.find_unfinished(splits):
        done = len(splits) - len(left)
        advance(done, len(splits))
        try:
            for _ in _wait_for_splits(phase, left, workers, brief, models):
                done += 1
                advance(done, len(splits))
        except ClusterLost as lost:
            if not ray_local.end_own():
                again = "finished work is kept; run the same command to continue"
                raise Unfinished(f"{lost}; {again}") from None
            log.warning("%s; starting another one for the remaining work", lost)
            join()
        else:
            return
    advance(len(splits), len(splits))


def _wait_for_splits(
    phase: Phase, left: Sequence[Split], workers: int, brief: bool, models: bool
) -> Iterator[str]:
    """Process the splits in `left` and yield the name of each one when it is done."""
    if not workers:
        return _run_in_process(phase, left)
    return _run_by_ray(phase, left, worker_space.find_place(workers, models), brief)


def _run_in_process(phase: Phase, left: Sequence[Split]) -> Iterator[str]:
    if left:
        work = phase.make_work()
        for split in left:
            phase.do(work, split)
            yield split.name


def _run_by_ray(
    phase: Phase, left: Sequence[Split], place: worker_space.WorkerPlace, brief: bool
) -> Iterator[str]:
    """Process the splits by Ray Data or by tasks, and search for the records that kill."""
    call = uuid.uuid4().hex
    tries = TRIES
    if not brief:
        from ray.exceptions import ObjectLostError

        done = set()
        with contextlib.suppress(ObjectLostError):  # a node was lost that held the name of a split
            for name in _run_by_ray_data(phase, left, place, call):
                done.add(name)
                yield name
        # Ray Data passed over these: their processes were killed, or their nodes were lost.
        left = [split for split in left if split.name not in done]
        tries -= 1
    killed = list[Split]()
    yield from _iterate_names(_run_by_tasks(phase, left, place, call, tries, killed))
    for number, split in enumerate(killed, 1):
        log.warning(
            "%s: its process was killed %d times (split %d of %d such)",
            *(split.name, TRIES, number, len(killed)),
        )
        yield _finish_without_crashing_records(phase, split, place, call)


def _finish_without_crashing_records(
    phase: Phase, split: Split, place: worker_space.WorkerPlace, call: str
) -> str:
    """Put the records that kill their process in quarantine, and process the rest of `split`.

    One process works at a time, so that memory is not short because of others. Returns the name of
    the split. Raises ClusterError if no single record kills, or if MOST_CRASHED are not all.
    """
    alone = dataclasses.replace(place, most=1)

    def probe(begin: int, end: int) -> int | None:
        for row in _run_by_tasks(phase, [split.probe(begin, end)], alone, call, 1, []):
            _raise_error(row)
            return int(row["records"])
        return None

    for left_out in range(MOST_CRASHED + 1):
        tries = TRIES if left_out else 1
        for name in _iterate_names(_run_by_tasks(phase, [split], alone, call, tries, [])):
            return name
        if not phase.divisible:
            raise _explain_killed(split, "finished splits are kept")
        if left_out == MOST_CRASHED:
            break
        number = find_crashing_record(probe, TRIES)
        if number is None:
            raise _explain_killed(split, "no single record is the cause")
        log.warning("%s: record %d kills its process, and is in quarantine", split.name, number)
        split = split.leave_out(number)
        phase.note_crashed(split)
    raise _explain_killed(split, f"without {MOST_CRASHED} records that kill it, it is still killed")


def _explain_killed(split: Split, why: str) -> ClusterError:
    """Return the error for a split whose process is killed, also when it works alone."""
    files = f" of {', '.join(paths)}" if (paths := split.list_paths()) else ""
    return ClusterError(
        f"{split.name}{files}: the process that worked on it was killed {TRIES} times, and once "
        f"more without others; {why}; give the workers more memory, or leave out its files, and "
        "run the same command again"
    )


def _run_by_ray_data(
    phase: Phase, left: Sequence[Split], place: worker_space.WorkerPlace, call: str
) -> Iterator[str]:
    """Process the splits and yield the names of those that are done.

    A split whose process is killed is passed over. Its other tries are plain tasks, which tell a
    killed process from a lost node.
    """
    import ray.data
    from ray.util.annotations import RayDeprecationWarning

    # A copy, because datasets of the caller must not lose blocks with errors.
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.label_selector = dict(place.selector) or None
    # All tasks are submitted at once, because Ray's autoscaler starts nodes only for waiting tasks.
    # With resource reservation, Ray Data would submit only the tasks that fit the live nodes.
    context.op_resource_reservation_enabled = False
    context.max_errored_blocks = -1  # `_do_split` returns its errors: only killed splits remain
    with ray.data.DataContext.current(context):
        rows = ray.data.from_items(
            [_make_row(split) for split in left], override_num_blocks=len(left)
        )
    size = min(place.most, len(left))
    shared = phase, call
    with warnings.catch_warnings():
        # Ray 2.64 will take no options for retries, and names no other way to limit them.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        if place.gpus:
            # Ray ends the process of a task on a GPU with the task: the next one would load again.
            done = rows.map(
                _SplitActor,  # type: ignore[arg-type] # a class, which Ray makes callable
                fn_constructor_args=shared,
                compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
                num_cpus=place.need["CPU"],
                num_gpus=place.gpus,
                max_task_retries=0,  # the actor starts again, and the next tries are plain tasks
            )
        else:
            # Otherwise tasks: their worker processes, with all imports, live on between phases.
            done = rows.map(
                _do_split,  # type: ignore[arg-type] # a function with more arguments, which follow
                fn_args=shared,
                compute=ray.data.TaskPoolStrategy(size=size),
                num_cpus=place.need["CPU"],
                max_retries=0,  # otherwise Ray retries for ever what its memory monitor killed
            )
    rays = logging.getLogger("ray.data")
    level = rays.level
    rays.setLevel(logging.CRITICAL)  # errors are raised here
    try:
        yield from _iterate_names(_iterate_in_thread(done.iter_rows))
    finally:
        rays.setLevel(level)


def _run_by_tasks(
    phase: Phase,
    left: Sequence[Split],
    place: worker_space.WorkerPlace,
    call: str,
    tries: int,
    killed: list[Split],
) -> Iterator[dict[str, Any]]:
    """Process the splits by plain Ray tasks, and yield the rows of those that are done.

    Splits whose process is killed on `tries` tries are added to `killed`. A split whose node is
    lost is tried again, until it has lost NODES nodes: then it may have taken them down.
    """
    if not left:
        return
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    do: Any = ray.remote(_do_split).options(
        num_cpus=place.need["CPU"],
        num_gpus=place.gpus,
        label_selector=dict(place.selector),
        max_retries=0,
    )
    shared = ray.put(phase)

    def rows() -> Iterator[dict[str, Any]]:
        to_go = collections.deque((split, tries) for split in left)
        running = dict[Any, tuple[Split, int]]()
        lost = collections.Counter[str]()  # nodes that each split has lost
        while to_go or running:
            while to_go and len(running) < place.most:
                split, tries_left = to_go.popleft()
                running[do.remote(_make_row(split), shared, call)] = split, tries_left
            (done,), _ = ray.wait(list(running))
            split, tries_left = running.pop(done)
            try:
                row = ray.get(done)
            except NodeDiedError:
                lost[split.name] += 1
                if lost[split.name] < NODES:
                    to_go.append((split, tries_left))
                else:
                    killed.append(split)
            except (OutOfMemoryError, WorkerCrashedError):
                if tries_left > 1:
                    to_go.append((split, tries_left - 1))
                else:
                    killed.append(split)
            else:
                yield row
                if row["error"]:
                    return

    yield from _iterate_in_thread(rows)


def _make_row(split: Split) -> dict[str, Any]:
    """Convert a split to the row that is sent to a worker."""
    return {"name": split.name, "task": json.dumps(dict(split.task))}


def _iterate_names(done: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of the splits that are done; raise the first error among them."""
    for row in done:
        _raise_error(row)
        yield row["name"]


def _raise_error(row: Mapping[str, Any]) -> None:
    """Raise the error that `_do_split` returned, if any."""
    if row["error"]:
        raise pickle.loads(row["error"])


def _iterate_in_thread(iterate: Callable[[], Iterable[_Row]]) -> Iterator[_Row]:
    """Yield the items of `iterate()`, which runs in a separate thread; raise its error here.

    A signal handler's exception is raised in the main thread, and Ray's code swallows some of these
    exceptions. With Ray's code in the main thread, a driver that received a stop signal then waited
    for ever in 1 run of 12. Raises ClusterLost if Ray is lost.

    If the caller takes no more items, the thread ends with the item that it waits for. Otherwise
    the rest would be made for nobody, as after the first error of a split.
    """
    results: queue.SimpleQueue[tuple[_Row | None, BaseException | None]] = queue.SimpleQueue()
    ended = threading.Event()

    def run() -> None:
        try:
            for row in iterate():
                if ended.is_set():
                    return
                results.put((row, None))
            results.put((None, None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name=SPLITS_THREAD, daemon=True).start()
    try:
        while True:
            try:
                row, error = results.get(timeout=ray_local.LOOK_AT_RAY)
            except queue.Empty:
                ray_local.raise_if_lost()
                continue
            if error is not None:
                ray_local.raise_if_lost(surely=True)
                raise error
            if row is None:
                return
            yield row
    finally:
        ended.set()


_loaded: dict[str, Work] = {}  # loaded work of the latest `map_splits` call, in a Ray worker


def _load_work(call: str, make_work: Callable[[], Work]) -> Work:
    """Return the result of `make_work`, cached for all splits of the `map_splits` call `call`."""
    if call not in _loaded:
        _loaded.clear()  # before loading, because both may be too large for the memory together
        _loaded[call] = make_work()
    return _loaded[call]


def _do_split(row: Mapping[str, Any], phase: Phase, call: str) -> dict[str, Any]:
    """Process one split of a phase; `call` is the id of the call of `map_splits`.

    An error is returned as a part of the row. Ray would wrap it in pages of traceback, and Ray Data
    would pass over it.
    """
    split = Split(name=row["name"], task=json.loads(row["task"]))
    done: dict[str, Any] = {"name": split.name, "error": b"", "records": 0}
    try:
        work = _load_work(call, phase.make_work)  # may raise TrainrigError as well
        if PROBED in split.task:
            done["records"] = work(split.task)[0]["records"]
        else:
            phase.do(work, split)
    except Exception as error:
        done["error"] = _pickle_error(error)
    return done


def _pickle_error(error: Exception) -> bytes:
    """Return `error` as the driver can raise it; a bug keeps its traceback as a note."""
    told = traceback.format_exc()
    if not isinstance(error, errors.TrainrigError):
        error.add_note(told)
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # some classes of libraries cannot be pickled
        return pickle.dumps(RuntimeError(told))
    return pickled


class _SplitActor:
    """Worker with a GPU, which loads its work once for all splits that it processes."""

    def __init__(self, phase: Phase, call: str) -> None:
        self._phase = phase
        self._call = call

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return _do_split(row, self._phase, self._call)
