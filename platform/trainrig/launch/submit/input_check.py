"""Checks by `trainrig check` of what a run needs: its inputs, and the packages that it names.

`submit` refuses a run with such a problem. `check` only reports it, because an earlier stage may
still have to make the input, and the run may be meant for another machine.
"""

from collections.abc import Callable, Iterator
from functools import partial

from trainrig import storage
from trainrig.config import RunFile
from trainrig.errors import TrainrigError
from trainrig.launch.submit import run_paths
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.storage.missing_folders import describe_origin
from trainrig.train.run_file.training_settings import Training


def find_input_problems(run: RunFile) -> Iterator[str]:
    """Yield a line for each input of `run` that does not exist, and for each missing package."""
    for place in run_paths.find_paths(run):
        if place.use in ("input", "shipped"):
            yield from _find_problem(place)
    for check in _list_package_checks(run):
        try:
            check()
        except TrainrigError as error:
            yield str(error)


def _list_package_checks(run: RunFile) -> Iterator[Callable[[], None]]:
    training = getattr(run, "training", None)
    for sink in training.metrics.sinks if isinstance(training, Training) else ():
        yield partial(sink.check, run.output)
    if isinstance(run, Sweep) and run.search:
        yield run.search.searcher.check


def _find_problem(place: run_paths.NamedPath) -> Iterator[str]:
    try:
        with storage.briefly():
            there = run_paths.is_there(place.path)
    except (TrainrigError, OSError) as error:
        yield f"{place.key}: {error}"
        return
    if not there:
        pattern = any(sign in place.path for sign in "*?[")
        what = "no file matches" if pattern else "does not exist"
        yield f"{place.key}: {place.path}: {what}{describe_origin(place.path)}"
