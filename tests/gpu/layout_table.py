"""Pace of one rank of eight in each layout on one device: the second table of `make gpu`.

`python tests/gpu/layout_table.py [--device cpu --size tiny] [--out FOLDER]`. Each row is a process:
the last rank of a group of torch's fake process group, whose collectives return at once. So its
seconds are those of computing and of launching alone, communication excluded. Its losses mean
nothing: received tensors are zeros, and experts receive as many rows as the rank sends. A rank of a
pipeline does not wait for other stages, so its bubble is excluded, too.
"""

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gpu import step_table  # noqa: E402 - puts the package on the path, too
from gpu.own_process import alone  # noqa: E402

from trainrig.models.architecture.decoder_config import DecoderConfig  # noqa: E402
from trainrig.parallel import numerics  # noqa: E402
from trainrig.parallel.axes import expert_dispatch  # noqa: E402
from trainrig.parallel.mesh import find_local_device, use_device  # noqa: E402
from trainrig.parallel.precision import set_products  # noqa: E402
from trainrig.tokens.batches import TOKENS, read_local_batch  # noqa: E402
from trainrig.train.run_file.training_settings import Training  # noqa: E402
from trainrig.train.state import build_fresh_state  # noqa: E402
from trainrig.train.step import Stepper  # noqa: E402
from trainrig.train.training_job import TrainingJob  # noqa: E402

WORLD = 8
TENSOR = {"ranks": 2}
IN_PLACES = TENSOR | {"sequence_parallel": True}
EXPERTS = {"feedforward": {"kind": "MixtureOfExperts", "experts": 8, "active": 2}}
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "FSDP": {"kind": "FSDP"},
    "HSDP of 2 copies": {"kind": "HSDP", "replicas": 2},
    "DDP": {"kind": "DDP"},
    "tensor 2": {"kind": "FSDP", "tensor": TENSOR},
    "tensor 2 in places": {"kind": "FSDP", "tensor": IN_PLACES},
    "context 2": {"kind": "FSDP", "context": {"kind": "Gathered", "ranks": 2}},
    "context 2 by ring": {"kind": "FSDP", "context": {"kind": "RingAttention", "ranks": 2}},
    "pipeline 2": {"kind": "FSDP", "pipeline": {"ranks": 2}},
    "tensor 2, pipeline 2": {"kind": "FSDP", "tensor": IN_PLACES, "pipeline": {"ranks": 2}},
    "tensor, context, pipeline 2": {
        "kind": "FSDP",
        "tensor": IN_PLACES,
        "context": {"kind": "Gathered", "ranks": 2},
        "pipeline": {"ranks": 2},
    },
    "mixture": {"kind": "FSDP"},
    "mixture, expert 2": {"kind": "FSDP", "expert": {"ranks": 2}},
}


@dataclass(frozen=True)
class Rows(step_table.Rows):
    """Batches of as many micro-batches a step as there are ranks."""

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches of a step."""
        return WORLD

    def denominators(self, step: int) -> dict[str, int]:
        """Return the number of targets that a step's loss is divided by."""
        return {TOKENS: WORLD * self.size.rows * self.size.length}


def _zeroed(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `allocate`, changed to return memory of zeros."""

    def allocate_zeros(*arguments: Any, **options: Any) -> torch.Tensor:
        found = allocate(*arguments, **options)
        return found if found.is_meta else found.zero_()

    return allocate_zeros


def stand_for_others() -> None:
    """Join torch's fake process group as its last rank; no other rank exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=WORLD - 1, world_size=WORLD)
    # Receive buffers are never written. Zeros keep the arithmetic finite.
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        setattr(owner, name, _zeroed(getattr(owner, name)))
    expert_dispatch.gather_parts = lambda part, group: torch.stack([part] * group.size())


def measure_layout(name: str, size: step_table.Size, device: str) -> dict[str, Any]:
    """Time the steps of one rank, in a process that measures no other."""
    use_device(0 if device == "cuda" else None)
    stand_for_others()
    mixture = EXPERTS if "mixture" in name else {}
    config = DecoderConfig.model_validate(size.config().model_dump() | mixture)
    count = step_table.WARM + step_table.TIMED
    training = Training.model_validate(
        {
            "steps": count + 1,
            "deterministic": False,
            "parallel": LAYOUTS[name],
            "precision": {"compute": "bfloat16" if device == "cuda" else "float32"},
            "metrics": {"every": 0, "layers_every": 0},
            "spikes": None,
        }
    )
    numerics.settle(1, training.deterministic)
    set_products(training.precision)
    job = TrainingJob("", config, training, tuple, "")
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, ("made up",), state, lambda: False)
    mesh = state.mesh
    shares = [
        read_local_batch(Rows(size), mesh.data_rank, mesh.data_size, number)
        for number in range(count)
    ]
    skipped = []

    def step(number: int) -> None:
        figures = stepper.take(shares[number])
        assert figures is not None
        skipped.append(figures.why_skipped)

    seconds = [step_table.run_timed(step, number) for number in range(count)][step_table.WARM :]
    median = statistics.median(seconds)
    return {
        "layout": name,
        "step_seconds": median,
        "step_seconds_from_to": [min(seconds), max(seconds)],
        "tokens_per_second_a_device": size.rows * size.length / median,
        "updated": not any(skipped),  # otherwise the seconds do not include the optimizer
        "peak_gib": step_table._peak_bytes() / 2**30,
    }


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="layout_table.py", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=step_table.SIZES, default="350M")
    parser.add_argument("--out", default=tempfile.gettempdir(), help="folder for the JSON file")
    asked = parser.parse_args(arguments)
    size = step_table.SIZES[asked.size]
    rows = list[dict[str, Any]]()
    now = datetime.datetime.now(datetime.UTC)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "commit": next(step_table._commit(), "unknown"),
        "torch": torch.__version__,
        "size": {"name": asked.size} | dataclasses.asdict(size),
        "world": WORLD,
    }
    path = Path(asked.out) / f"layout-table-{now:%Y%m%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'one rank of 8, alone':<28}{'tokens/s':>10}{'ms/step':>9}{'GiB':>7}")
    for name in LAYOUTS:
        found = alone(measure_layout, name, size, asked.device)
        rows.append({"layout": name} | found)
        path.write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n")
        if "failed" in found:
            print(f"{name:<28}{found['failed']}", flush=True)
            continue
        print(
            f"{name:<28}{found['tokens_per_second_a_device']:>10,.0f}"
            f"{1e3 * found['step_seconds']:>9.1f}{found['peak_gib']:>7.2f}"
            f"{'' if found['updated'] else '  without the optimizer'}",
            flush=True,
        )
    print(path)
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
