"""The Ray that a stage runs on, and splits mapped over it by Ray Data.

Both stages that cut their work into splits (curate, tokenize) need the same forty lines, so they
stand here once. What travels through Ray is the split's name and task and its name back: pages
and tokens never enter the object store.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from trainrig import errors
from trainrig.errors import ClusterError, ConfigError
from trainrig.splits import Phase, Split, Work

# Each must be set before Ray is imported or started; what the user has set stays.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # else whoever reaches the port commands the machine
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else threads of a driver that ends start another
    "RAY_DEDUP_LOGS": "0",  # merges lines that differ only in digits
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # its C++ prints warnings about itself over our progress
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # do not hide GPUs from tasks that ask for none
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # s; 2.0 by default: how soon a dead worker is seen
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",  # s; for CPUs that ought to be free
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # ends a run at a drain's deadline; we move before
    "RAY_health_check_period_ms": "500",  # with the next: a dead node is known in about 2 s, not 15
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
}
# Workers × threads ≤ cores; and with one thread the order of every sum is fixed.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is not deterministic without, and torch refuses
}
OBJECT_STORE_BYTES = 256 * 2**20  # paths and counts only: far less is ever used

_Row = TypeVar("_Row")

Progress = Callable[[int, int], None]
"""Called with (splits done, splits in all) as a phase advances."""


def connect(workers: int, what: str) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local one; once a process.

    Raises ConfigError if `workers` one-CPU workers (of `what`, for the message) do not fit.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "local")
        local = _local_options() if address == "local" else {}
        try:
            with _stderr_closed(), _sigterm_kept():
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": WORKER_ENVIRONMENT},
                    **local,
                )
        except ConnectionError as error:
            raise ClusterError(f"RAY_ADDRESS={address}: no Ray cluster answers: {error}") from None
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    _check_fit(workers, int(resources.get("CPU", 0)), what)


@contextlib.contextmanager
def _stderr_closed() -> Iterator[None]:
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
def _sigterm_kept() -> Iterator[None]:
    """Ray puts in a handler that ends the process as a failure; whoever set one means otherwise."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _local_options() -> dict[str, Any]:
    return {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}


def _check_fit(workers: int, cpus: int, what: str) -> None:
    if workers > cpus:
        raise ConfigError(
            f"{what}: {workers} workers of 1 CPU each, but Ray has {cpus} logical CPUs; "
            f"set workers = {cpus} or fewer, or add nodes"
        )


def map_splits(
    phase: Phase, splits: Sequence[Split], workers: int, progress: Progress | None = None
) -> None:
    """Do what `phase` has left of `splits`, `workers` at a time on Ray Data; 0: in this process.

    The first error of a split ends the phase; splits that were done stay done.
    """
    left = phase.left_to_do(splits)
    done = len(splits) - len(left)
    advance = progress or (lambda done, all_: None)
    advance(done, len(splits))
    finished = _on_ray(phase, left, workers) if workers else _in_process(phase, left)
    for _ in finished:
        done += 1
        advance(done, len(splits))


def _in_process(phase: Phase, left: Sequence[Split]) -> Iterator[str]:
    if left:
        work = phase.make_work()
        for split in left:
            phase.do(work, split)
            yield split.name


def _on_ray(phase: Phase, left: Sequence[Split], workers: int) -> Iterator[str]:
    if not left:
        return
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what matters is raised below
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"name": split.name, "task": json.dumps(dict(split.task))} for split in left]
    # Tasks, not actors: Ray's processes live on from phase to phase, with all that they imported.
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        _do_split,  # type: ignore[arg-type] # a function with more arguments, which follow
        fn_args=(phase, uuid.uuid4().hex),
        compute=ray.data.TaskPoolStrategy(size=min(workers, len(rows))),
        num_cpus=1,
    )
    for row in _aside(done.iter_rows):
        if row["problem"]:
            raise getattr(errors, row["kind"])(row["problem"])
        yield row["name"]


def _aside(iterate: Callable[[], Iterable[_Row]]) -> Iterator[_Row]:
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
        row, error = results.get()
        if error is not None:
            raise error
        if row is None:
            return
        yield row


_loaded: dict[str, Work] = {}  # in a process of Ray's: of the last call that it did a split of


def _work_of(call: str, make_work: Callable[[], Work]) -> Work:
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
        work = _work_of(call, phase.make_work)  # here, as it may raise as well
        phase.do(work, split)
    except errors.TrainrigError as error:
        return {"name": split.name, "problem": str(error), "kind": type(error).__name__}
    return {"name": split.name, "problem": "", "kind": ""}
