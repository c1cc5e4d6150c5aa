"""Processing of the splits of a stage, on Ray Data or in this process.

The stages that divide their work into splits (curate, tokenize) share this code. Only the name and
task of a split are sent to a worker, and only its record comes back, which the driver writes with
others: pages and tokens never enter the object store. A task gets a few splits and a reference to
the phase, so its size does not depend on the number of splits. A split whose process is killed is
tried again, and then the record that kills it is searched for.
"""

import collections
import contextlib
import dataclasses
import logging
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from trainrig.errors import ClusterError, ClusterLost, Unfinished
from trainrig.manifest.split_records import RecordRow
from trainrig.ray_runtime import ray_local, ray_progress, split_workers, worker_space
from trainrig.ray_runtime.ray_session import join
from trainrig.splits import Phase, Split

if TYPE_CHECKING:
    from ray.data import DataContext, Dataset

log = logging.getLogger(__name__)
TRIES = 3  # times that the process of a split may be killed before the reason is searched for
NODES = 5  # nodes that a split may lose before it counts as the reason
MOST_CRASHED = 10  # records of a split that are left out; more of them point to the machine
SPLITS_THREAD = "splits"  # name of the thread that waits for splits
# Ray Data takes 10 ms of the driver for a task, so a task gets up to MOST_TOGETHER splits, but a
# worker gets TASKS_EACH tasks at least: at the end of a phase, it waits for one task of another.
MOST_TOGETHER = 16
TASKS_EACH = 16

_Row = TypeVar("_Row")

Progress = Callable[[int, int], None]
"""Called with (splits done, splits in all) as a phase advances."""


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
    The record of a split is written within a second, together with those of others.
    `models`: whether the workers load a model; they then run as `worker_space.find_place` says.

    A split whose process is killed is tried TRIES times. In a divisible phase, the record that
    kills is then searched for and left out. Raises ClusterError if there is no such record. With 0
    workers the record kills this process.

    If a local Ray is lost, another one is started for the splits that are left. Raises Unfinished
    if a joined cluster is lost.
    """
    advance = progress or (lambda done, all_: None)
    while True:
        left, records = phase.open_records(splits)
        if not left:
            break
        done = len(splits) - len(left)
        advance(done, len(splits))
        try:
            with records:
                for row in _wait_for_splits(phase, left, workers, brief, models):
                    if row is None:
                        records.write()
                        continue
                    records.add(row)
                    done += 1
                    advance(done, len(splits))
        except ClusterLost as lost:
            if not ray_local.end_own():
                again = "finished work is kept; run the same command to continue"
                raise Unfinished(f"{lost}; {again}") from None
            log.warning("%s; starting another one for the remaining work", lost)
            join()
        else:
            break
    phase.tables.merge()
    if not left:
        advance(len(splits), len(splits))


def _wait_for_splits(
    phase: Phase, left: Sequence[Split], workers: int, brief: bool, models: bool
) -> Iterator[RecordRow | None]:
    """Process the splits in `left` and yield the record of each one when it is done.

    Yields None when no split is done for a while.
    """
    if not workers:
        return _run_in_process(phase, left)
    place = worker_space.find_place(workers, models, phase.memory)
    return worker_space.warn_without_space(_run_by_ray(phase, left, place, brief), place)


def _run_in_process(phase: Phase, left: Sequence[Split]) -> Iterator[RecordRow]:
    work = phase.make_work()
    for split in left:
        yield phase.do(work, split).to_row()


def _run_by_ray(
    phase: Phase, left: Sequence[Split], place: worker_space.WorkerPlace, brief: bool
) -> Iterator[RecordRow | None]:
    """Process the splits by Ray Data or by tasks, and search for the records that kill."""
    shared = split_workers.SharedPhase.put(phase)
    tries = TRIES
    if not brief:
        from ray.exceptions import ObjectLostError

        done = set()
        with contextlib.suppress(ObjectLostError):  # a node was lost that held a large record
            for row in _run_by_ray_data(shared, left, place):
                if row is not None:
                    done.add(row.name)
                yield row
        # Ray Data passed over these: their processes were killed, or their nodes were lost.
        left = [split for split in left if split.name not in done]
        tries -= 1
    killed = list[Split]()
    yield from _iterate_records(_run_by_tasks(shared, left, place, tries, killed))
    yield None  # the search may take long
    for number, split in enumerate(killed, 1):
        log.warning(
            "%s: its process was killed %d times (split %d of %d such)",
            *(split.name, TRIES, number, len(killed)),
        )
        yield _finish_without_crashing_records(phase, shared, split, place)
        yield None


def _finish_without_crashing_records(
    phase: Phase, shared: split_workers.SharedPhase, split: Split, place: worker_space.WorkerPlace
) -> RecordRow:
    """Put the records that kill their process in quarantine, and process the rest of `split`.

    One process works at a time, so that memory is not short because of others. Returns the record
    of the split. Raises ClusterError if no single record kills, or if MOST_CRASHED are not all.
    """
    alone = dataclasses.replace(place, most=1)

    def probe(begin: int, end: int) -> int | None:
        for row in _run_by_tasks(shared, [split.probe(begin, end)], alone, 1, []):
            if row is not None:
                split_workers.raise_error(row)
                return int(row["records"])
        return None

    for left_out in range(MOST_CRASHED + 1):
        tries = TRIES if left_out else 1
        for record in _iterate_records(_run_by_tasks(shared, [split], alone, tries, [])):
            if record is not None:
                return record
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


Probe = Callable[[int, int], int | None]
"""Function that processes the records from the first number to before the last.

Returns how many records were read, or None if the process was killed.
"""


def find_crashing_record(probe: Probe, tries: int) -> int | None:
    """Return the number of the first record that kills its process, or None.

    The records are halved until one is left, which must then kill its process alone, `tries` times.
    The result is None if no single record does so. Then the process is killed by reading the
    records, or by many of them together.
    """
    count = probe(sys.maxsize, sys.maxsize)
    if not count:
        return None
    begin = 0
    end = count
    while end - begin > 1:
        middle = (begin + end) // 2
        if probe(begin, middle) is None:
            end = middle
        else:
            begin = middle
    kills = all(probe(begin, begin + 1) is None for _ in range(tries))
    return begin if kills else None


def _explain_killed(split: Split, why: str) -> ClusterError:
    """Return the error for a split whose process is killed, also when it works alone."""
    files = f" of {', '.join(paths)}" if (paths := split.list_paths()) else ""
    return ClusterError(
        f"{split.name}{files}: the process that worked on it was killed {TRIES} times, and once "
        f"more without others; {why}; give the workers more memory, or leave out its files, and "
        "run the same command again"
    )


def _run_by_ray_data(
    shared: split_workers.SharedPhase, left: Sequence[Split], place: worker_space.WorkerPlace
) -> Iterator[RecordRow | None]:
    """Process the splits and yield the records of those that are done.

    A split whose process is killed is passed over. Its other tries are plain tasks, which tell a
    killed process from a lost node.
    """
    import ray
    import ray.data

    size = min(place.most, len(left))
    with ray.data.DataContext.current(_make_data_context(place)):
        rows = ray.data.from_items(
            [split_workers.make_row(split) for split in left],
            override_num_blocks=-(-len(left) // count_together(len(left), size)),
        )
    done = _map_rows(rows, shared, place, size)
    done.set_name(shared.title)

    def iterate() -> Iterator[dict[str, Any]]:
        rays = logging.getLogger("ray.data")
        level = rays.level
        rays.setLevel(logging.CRITICAL)  # errors are raised by the caller of this function
        try:
            # `iter_batches` would hold each record back until the next one is prefetched. Without
            # prefetching it leaves a thread behind, for as long as this process lives.
            for bundle in done.iter_internal_ref_bundles():
                for reference in bundle.block_refs:
                    records: Any = ray.get(reference)  # a table of Arrow, by the format above
                    yield from records.to_pylist()
        finally:
            rays.setLevel(level)

    with ray_progress.suspend_own():
        yield from _iterate_records(_iterate_in_thread(iterate))


def _make_data_context(place: worker_space.WorkerPlace) -> "DataContext":
    """Return Ray Data's settings for the splits of a phase.

    They are a copy, because datasets of the caller must not lose blocks with errors.
    """
    import ray.data

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = ray_progress.is_shown()
    context.enable_rich_progress_bars = True
    context.use_ray_tqdm = False
    context.print_on_execution_start = False
    context.execution_options.label_selector = dict(place.selector) or None
    # All tasks are submitted at once, because Ray's autoscaler starts nodes only for waiting tasks.
    # With resource reservation, Ray Data would submit only the tasks that fit the live nodes.
    context.op_resource_reservation_enabled = False
    context.max_errored_blocks = -1  # `do_split` returns its errors: only killed splits remain
    # Bytes. Each record is then a block, which arrives as soon as its split is done.
    context.target_max_block_size = 1
    return context


def _map_rows(
    rows: "Dataset", shared: split_workers.SharedPhase, place: worker_space.WorkerPlace, size: int
) -> "Dataset":
    """Return the dataset of the records, made by `size` actors on GPUs or by tasks."""
    import ray.data
    from ray.util.annotations import RayDeprecationWarning

    options: dict[str, Any] = {
        "batch_size": None,
        "batch_format": "pyarrow",
        "num_cpus": place.need["CPU"],
        "memory": place.memory,
    }
    with warnings.catch_warnings():
        # Ray 2.64 will take no options for retries, and names no other way to limit them.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        if place.gpus:
            # Ray ends the process of a task on a GPU with the task: the next one would load again.
            return rows.map_batches(
                split_workers.name_actor(shared.title),
                fn_constructor_args=(shared,),
                compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
                num_gpus=place.gpus,
                max_task_retries=0,  # the actor starts again, and the next tries are plain tasks
                **{**options, "batch_size": 1},  # Ray requires a number where GPUs are requested
            )
        # Otherwise tasks: their worker processes, with all imports, live on between phases.
        return rows.map_batches(
            split_workers.name_function(shared),
            compute=ray.data.TaskPoolStrategy(size=size),
            max_retries=0,  # otherwise Ray retries for ever what its memory monitor killed
            **options,
        )


def count_together(splits: int, workers: int) -> int:
    """Return the number of splits in a task."""
    return max(1, min(MOST_TOGETHER, splits // (TASKS_EACH * workers)))


def _run_by_tasks(
    shared: split_workers.SharedPhase,
    left: Sequence[Split],
    place: worker_space.WorkerPlace,
    tries: int,
    killed: list[Split],
) -> Iterator[dict[str, Any] | None]:
    """Process the splits by plain Ray tasks, and yield the rows of those that are done.

    Splits whose process is killed on `tries` tries are added to `killed`. A split whose node is
    lost is tried again, until it has lost NODES nodes: then it may have taken them down.
    """
    if not left:
        return
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    do: Any = ray.remote(split_workers.do_split).options(
        name=shared.title,
        num_cpus=place.need["CPU"],
        num_gpus=place.gpus,
        memory=place.memory,
        label_selector=dict(place.selector),
        max_retries=0,
    )

    def rows() -> Iterator[dict[str, Any]]:
        to_go = collections.deque((split, tries) for split in left)
        running = dict[Any, tuple[Split, int]]()
        lost = collections.Counter[str]()  # nodes that each split has lost
        while to_go or running:
            while to_go and len(running) < place.most:
                split, tries_left = to_go.popleft()
                running[do.remote(split_workers.make_row(split), shared)] = split, tries_left
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


def _iterate_records(done: Iterable[Mapping[str, Any] | None]) -> Iterator[RecordRow | None]:
    """Yield the records of the splits that are done; raise the first error among them."""
    for row in done:
        if row is None:
            yield None
        else:
            split_workers.raise_error(row)
            yield RecordRow(row["name"], row["counts"], row["files"])


def _iterate_in_thread(iterate: Callable[[], Iterable[_Row]]) -> Iterator[_Row | None]:
    """Yield the items of `iterate()`, which runs in a separate thread; raise its error here.

    Yields None when there is no item for LOOK_AT_RAY seconds.

    A signal handler's exception is raised in the main thread, and Ray's code swallows some of these
    exceptions. With Ray's code in the main thread, a driver that received a stop signal then waited
    for ever in 1 run of 12. Raises ClusterLost if Ray is lost.

    If the caller stops iterating, as after the first error of a split, the thread ends with the
    item that it waits for.
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

    ray_local.start_caller(run, SPLITS_THREAD)
    try:
        while True:
            try:
                row, error = results.get(timeout=ray_local.LOOK_AT_RAY)
            except queue.Empty:
                ray_local.raise_if_lost()
                yield None
                continue
            if error is not None:
                ray_local.raise_if_lost(surely=True)
                raise error
            if row is None:
                return
            yield row
    finally:
        ended.set()
