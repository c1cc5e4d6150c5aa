"""Counts of what a step asks of its device: calls that wait, kernels, and bytes that they move."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.batches import read_local_batch
from trainrig.train.held_out_loss import Metrics
from trainrig.train.loss_table import LossTable
from trainrig.train.state import build_fresh_state
from trainrig.train.step import Stepper
from trainrig.train.training_job import TrainingJob

# Tensor operations that give Python a number, or copy bytes elsewhere.
WAITS = {
    *("__bool__", "__float__", "__index__", "__int__", "cpu", "item", "nonzero", "tolist"),
    "is_nonzero",
    "unique",
}
TORCH = Path(torch.__file__).parent
PASSING_ON = {str(TORCH / name) for name in ("_tensor.py", "functional.py", "overrides.py")}
NOTHING = {"aten::empty.memory_format", "aten::detach"}


class Syncs(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in WAITS and not is_asked_by_torch():
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def is_asked_by_torch() -> bool:
    """Return whether torch itself reads an optimizer's step count, which is on the host."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename in PASSING_ON:
        frame = frame.f_back
    return Path(frame.f_code.co_filename).is_relative_to(TORCH)


class Kernels(TorchDispatchMode):
    """Counter of operators that compute something, and of the bytes that they read and write.

    `table`: the operators that fill the table of losses besides the loss itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = self.table = 0
        self.in_table = False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = operator(*args, **(kwargs or {}))
        if operator.is_view or operator.name() in NOTHING:
            return found
        self.count += 1
        self.table += self.in_table
        held = [value for value in tree_leaves((args, kwargs, found)) if isinstance(value, Tensor)]
        self.bytes += sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in held)
        return found


def count_syncs(job: TrainingJob, counting: Kernels | None = None) -> list[str]:
    """Return the calls that wait in a step, which `counting` counts as well."""
    training = job.training
    numerics.settle(training.threads, training.deterministic)
    batches = job.make_batches()
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, batches.sources, state, lambda: False)
    virtual = training.virtual_workers if training.deterministic else None
    found = []
    for step in range(2):
        share = read_local_batch(batches, 0, 1, step, virtual=virtual)
        stepper.begin()
        with Syncs() as syncs, counting if counting and step else contextlib.nullcontext():
            figures = stepper.take(share)
        assert figures.why_skipped is None
        found.append(syncs.found)
    return found[1]  # the first step creates the optimizer's state


# Sampling of a step's metrics.
CADENCES = {"plain": (0, 0), "sampled": (1, 0), "by layer": (1, 1)}


def count_work(
    make_job: Callable[..., TrainingJob],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    **shape: Any,
) -> dict[str, dict[str, int]]:
    """Return kernels, bytes and waits of a step by cadence, and kernels of the loss table.

    The cadences are no measurement, sampled, and sampled by layer.
    """
    found = {}
    for name, (every, layers_every) in CADENCES.items():
        training = {"metrics": {"every": every, "layers_every": layers_every}}
        job = make_job(folder / name, training=training, **shape)
        with count_table_kernels(monkeypatch) as kernels:
            waits = count_syncs(job, kernels)
        found[name] = {"kernels": kernels.count, "bytes": kernels.bytes, "waits": len(waits)}
        found[name]["table"] = kernels.table
    return found


def make_shape(layers: int, micro_batch: int) -> dict[str, dict[str, int]]:
    """Return the shape of a job with this number of layers, and 8 rows a step."""
    return {
        "model": {"layers": layers, "channels": 64, "heads": 4, "kv_heads": 4, "positions": 64},
        "batches": {"sequence_length": 64, "global_batch": 8, "micro_batch": micro_batch},
    }


@contextlib.contextmanager
def count_table_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Return a counter of kernels that also counts the kernels of the loss table."""
    kernels = Kernels()

    def within(act: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            kernels.in_table = True
            try:
                return act(*arguments)
            finally:
                kernels.in_table = False

        return count

    with monkeypatch.context() as patched:
        for name in ("_fill_term", "_divide_squares"):
            patched.setattr(LossTable, name, within(getattr(LossTable, name)))
        yield kernels


def compute_added_share(counts: Mapping[str, Mapping[str, int]], what: str) -> float:
    """Return the share that measurements add at the default cadence, the mean over 100 steps."""
    settings = Metrics()
    assert settings.layers_every % settings.every == 0
    plain = counts["plain"][what]
    by_layer = (counts["by layer"][what] - plain) / settings.layers_every
    often = 1 / settings.every - 1 / settings.layers_every
    return (by_layer + (counts["sampled"][what] - plain) * often) / plain
