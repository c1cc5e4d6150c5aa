"""Benchmark table of `make gpu`: the pace of a training step, compared with plain loops.

`python tests/gpu/step_table.py [--device cpu --sizes tiny] [--out FOLDER]`. Each row is a
separate process, forked from one that never touches the device. It needs torch 2.11 and the imports
of `train/loop`; no Ray, no network. All rows are written to a JSON file in the folder, and the
table to the terminal.

MFU follows one rule for every row: products of the forward pass and twice as many of the backward
one, with attention over visible keys (trainrig/flops.py; nanoGPT's own sizes), divided by the
device's peak in `hardware.toml`. `matmul` divides by the best product measured in this run instead.
"""

import argparse
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gpu.own_process import ROW_SECONDS, alone  # noqa: E402
from gpu.peer_loops import PEERS, PeerLoop  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from trainrig import hardware  # noqa: E402
from trainrig.errors import ConfigError  # noqa: E402
from trainrig.flops import BACKWARD, count_token_flops  # noqa: E402
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters  # noqa: E402
from trainrig.parallel import numerics  # noqa: E402
from trainrig.parallel.mesh import find_local_device, join_group, use_device  # noqa: E402
from trainrig.parallel.precision import set_products  # noqa: E402
from trainrig.tokens.batches import TOKENS, MicroBatch, build_token_arrays, read_local_batch  # noqa: E402
from trainrig.train.run_file.training_settings import Training  # noqa: E402
from trainrig.train.state import build_fresh_state  # noqa: E402
from trainrig.train.step import Stepper  # noqa: E402
from trainrig.train.training_job import TrainingJob  # noqa: E402

WARM = 3  # steps before the timed ones
TIMED = 5
MICRO_BATCHES = 2  # micro-batches of a step
FLOAT8 = "float8"
FLOAT8_SIZE = "1.3B"  # the size that is measured in float8: small models gain nothing by 8 bits
FUSED = "fast, fused"
FUSED_SIZES = ("tiny", "1.3B")


@dataclass(frozen=True)
class Size:
    """Sizes of a model, and of its batches."""

    layers: int
    channels: int
    heads: int
    rows: int  # rows of a micro-batch
    length: int = 2048  # tokens of a row
    vocabulary: int = 50_304  # GPT-2's, as nanoGPT pads it

    def config(self) -> DecoderConfig:
        """Return a Llama-like decoder whose head is tied to the embedding."""
        return DecoderConfig(
            layers=self.layers,
            channels=self.channels,
            heads=self.heads,
            vocabulary=self.vocabulary,
            positions=self.length,
        )


SIZES = {
    "tiny": Size(2, 64, 2, rows=2, length=64, vocabulary=512),
    "124M": Size(12, 768, 12, rows=16),
    "350M": Size(24, 1024, 16, rows=16),
    "1.3B": Size(24, 2048, 16, rows=8),
}
USUAL = ["124M", "350M", "1.3B"]


@dataclass(frozen=True)
class Row:
    """One row of the table, measured in its own process."""

    size: str
    loop: str  # ours: "deterministic", "fast", or FLOAT8 or FUSED, which are fast; or one of PEERS
    compiled: bool

    @property
    def ours(self) -> bool:
        """Whether the row is trainrig's, not a peer's."""
        return self.loop not in PEERS


@dataclass(frozen=True)
class Rows:
    """Batches of random tokens, the same in each run."""

    size: Size

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches of a step."""
        return MICRO_BATCHES

    def denominators(self, step: int) -> dict[str, int]:
        """Return the number of targets that a step's loss is divided by."""
        return {TOKENS: MICRO_BATCHES * self.size.rows * self.size.length}

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Return one micro-batch of a step."""
        shape = self.size.rows, self.size.length + 1
        ids = np.random.default_rng((step, index)).integers(0, self.size.vocabulary, shape)
        number = (step * MICRO_BATCHES + index) * self.size.rows + np.arange(self.size.rows)
        pieces = np.zeros((0, 3), dtype=np.int64)
        arrays = build_token_arrays(ids[:, :-1].copy(), ids[:, 1:].copy())
        return MicroBatch(arrays, number, number * 0, pieces)


def plan_rows(sizes: Sequence[str], compiled: Sequence[bool]) -> list[Row]:
    """Return all rows in order of size; peers are compiled if trainrig's rows are."""
    rows = []
    for size in sizes:
        rows += [Row(size, mode, how) for mode in ("deterministic", "fast") for how in compiled]
        rows += [Row(size, FLOAT8, compiled[-1])] if size == FLOAT8_SIZE else []
        rows += [Row(size, FUSED, compiled[-1])] if size in FUSED_SIZES else []
        rows += [Row(size, peer, compiled[-1]) for peer in PEERS]
    return rows


def measure_row(row: Row, device: str) -> dict[str, Any]:
    """Time the steps of one row, in a process that measures no other."""
    size = SIZES[row.size]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
        use_device(0 if device == "cuda" else None)
        join_group(0, 1, f"file://{folder}/store", timedelta(seconds=ROW_SECONDS))
        step, finish = (our_loop if row.ours else peer_loop)(row, size)
        seconds = [run_timed(step, number) for number in range(WARM + TIMED)][WARM:]
        measured = finish()
    median = statistics.median(seconds)
    tokens = MICRO_BATCHES * size.rows * size.length
    return {
        **dataclasses.asdict(row),
        "row_seconds": time.perf_counter() - began,
        "step_seconds": median,
        "step_seconds_from_to": [min(seconds), max(seconds)],
        "tokens_per_second": tokens / median,
        "flops_per_second": tokens * training_flops(row, size) / median,
        "peak_gib": _peak_bytes() / 2**30,
        **measured,
    }


def training_flops(row: Row, size: Size) -> float:
    """Return the FLOPs of one token, forward and backward."""
    config = size.config()
    found = count_token_flops(config, size.length)
    if row.loop == "nanogpt":  # nanoGPT's feed-forward part has eight products of C by C
        products = size.layers * 12 * size.channels**2
        found = dataclasses.replace(found, projections=2.0 * products)
    return found.forward * (1 + BACKWARD)


Step = Callable[[int], None]
Finish = Callable[[], dict[str, Any]]


def our_loop(row: Row, size: Size) -> tuple[Step, Finish]:
    """Return a function that takes a trainrig step, and one that completes the row."""
    total = WARM + TIMED + 1
    training = Training.model_validate(
        {
            "steps": total,
            "deterministic": row.loop == "deterministic",
            "virtual_workers": 1,
            "precision": {"compute": _find_compute(row)},
            "compile": {} if row.compiled else False,
            "fuse_projections": row.loop == FUSED,
            "metrics": {"every": 0, "layers_every": 0},
            "spikes": None,
        }
    )
    numerics.settle(1, training.deterministic)
    set_products(training.precision)
    batches = Rows(size)
    job = TrainingJob("", size.config(), training, tuple, "")
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, ("made up",), state, lambda: False)
    virtual = training.virtual_workers if training.deterministic else None
    shares = [read_local_batch(batches, 0, 1, number, virtual=virtual) for number in range(total)]

    def step(number: int) -> None:
        figures = stepper.take(shares[number])
        assert figures is not None and figures.why_skipped is None

    def finish() -> dict[str, Any]:
        stepper.clock.begin(measured=True)  # the last step is split by phase
        seconds = run_timed(step, total - 1)
        split = {name: spent / seconds for name, spent in stepper.clock.take().items()}
        weights = {"weights": _digest(state.model)} if training.deterministic else {}
        return {"split": split, **weights}

    return step, finish


def _find_compute(row: Row) -> str:
    if find_local_device().type == "cpu":
        return "float32"
    return FLOAT8 if row.loop == FLOAT8 else "bfloat16"


def peer_loop(row: Row, size: Size) -> tuple[Step, Finish]:
    """Return the same functions of a peer."""
    device = find_local_device()
    loop = PeerLoop(row.loop, size.config(), size.length, device, row.compiled)
    batches = Rows(size)
    shares = [
        [batches.micro_batch(number, index) for index in range(MICRO_BATCHES)]
        for number in range(WARM + TIMED)
    ]

    def step(number: int) -> None:
        loop.step([
            (_on(device, micro.ids), _on(device, micro.targets)) for micro in shares[number]
        ])  # fmt: skip

    return step, dict


def _on(device: torch.device, ids: NDArray[Any]) -> torch.Tensor:
    return torch.as_tensor(ids, dtype=torch.int64).to(device)


def run_timed(step: Step, number: int) -> float:
    """Return the seconds that step `number` takes until the device has finished it."""
    began = time.perf_counter()
    step(number)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _digest(model: torch.nn.Module) -> str:
    """Return a digest of every bit and its position; the weights stay on the device."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        for bits in local.detach().reshape(-1).view(torch.int32).split(2**26):
            at = torch.arange(1, 2 * len(bits), 2, device=bits.device)
            found.update(str(int((bits * at).sum())).encode())
    return found.hexdigest()


def _peak_bytes() -> int:
    import resource

    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_matmul(device: str) -> dict[str, Any]:
    """Return the most FLOP/s that a product of square matrices reached, in the rows' dtype."""
    use_device(0 if device == "cuda" else None)
    cuda = device == "cuda"
    best = 0.0
    for width in (4096, 8192) if cuda else (512, 1024):
        kind = torch.bfloat16 if cuda else torch.float32
        left, right = (torch.randn(width, width, device=device, dtype=kind) for _ in range(2))
        product = functools.partial(_multiply, left, right)
        seconds = [run_timed(product, number) for number in range(12)][2:]
        best = max(best, 2 * width**3 / min(seconds))
    found = {"matmul_flops_per_second": best, "peak": peak_flops(device)}
    return found | {"device": torch.cuda.get_device_name() if cuda else "cpu"}


def _multiply(left: torch.Tensor, right: torch.Tensor, number: int) -> None:
    torch.mm(left, right)


def peak_flops(device: str) -> float | None:
    """Return the device's peak by the hardware table, or None if the table lacks the device."""
    offers = hardware.load()
    try:
        found = offers.devices[hardware.identify_local_device(offers)]
        return found.find_peak("bfloat16" if device == "cuda" else "float32")
    except ConfigError:
        return None


def measure(
    sizes: Sequence[str],
    device: str,
    compiled: Sequence[bool],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure the whole table, each deterministic row twice to compare its weights.

    `keep` is called with all results so far after each row.
    """
    found = alone(measure_matmul, device)
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    parameters = {name: count_parameters(SIZES[name].config()).total for name in sizes}
    peak = found.get("peak")
    rows = list[dict[str, Any]]()
    found |= {"versions": versions, "parameters": parameters, "rows": rows}
    for row in plan_rows(sizes, compiled):
        result = alone(measure_row, row, device)
        if row.loop == "deterministic" and "failed" not in result:
            again = alone(measure_row, row, device)
            result["same_bits_again"] = again.get("weights") == result["weights"]
        if "failed" in result:
            result = {**dataclasses.asdict(row), **result}
        else:
            result["mfu"] = peak and result["flops_per_second"] / peak
            most = found.get("matmul_flops_per_second", math.nan)
            result["share_of_matmul"] = result["flops_per_second"] / most
        rows.append(result)
        keep(found)
        print(_line(result), flush=True)
    return found


HEAD = (
    f"{'size':<6}{'loop':<15}{'compiled':<10}{'tokens/s':>10}{'MFU':>7}{'matmul':>8}{'GiB':>7}"
    f"{'ms/step':>9}  forward backward optimizer  bits again"
)


def _line(row: dict[str, Any]) -> str:
    named = f"{row['size']:<6}{row['loop']:<15}{'yes' if row['compiled'] else 'no':<10}"
    if "failed" in row:
        return f"{named}{row['failed']}"
    mfu = "–" if row["mfu"] is None else f"{row['mfu']:.1%}"
    split = row.get("split")
    shares = "  {forward:>7.0%} {backward:>8.0%} {optimizer:>9.0%}".format(**split) if split else ""
    same = {True: "  the same", False: "  OTHERS", None: ""}[row.get("same_bits_again")]
    return (
        f"{named}{row['tokens_per_second']:>10,.0f}{mfu:>7}{row['share_of_matmul']:>8.1%}"
        f"{row['peak_gib']:>7.2f}{1e3 * row['step_seconds']:>9.1f}{shares}{same}"
    )


def _commit() -> Iterator[str]:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        yield done.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a row failed or a deterministic one was not reproducible."""
    parser = argparse.ArgumentParser(prog="step_table.py", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=USUAL)
    parser.add_argument("--out", default=tempfile.gettempdir(), help="folder for the JSON file")
    asked = parser.parse_args(arguments)
    compiled = (False, True) if asked.device == "cuda" else (False,)
    print(HEAD)
    now = datetime.datetime.now(datetime.UTC)
    began = {"date": now.isoformat(timespec="seconds"), "commit": next(_commit(), "unknown")}
    path = Path(asked.out) / f"step-table-{now:%Y%m%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def keep(found: dict[str, Any]) -> None:
        path.write_text(json.dumps(began | found, indent=1) + "\n")

    found = measure(asked.sizes, asked.device, compiled, keep)
    print(f"{found.get('device', asked.device)}; {path}")
    bad = [r for r in found["rows"] if "failed" in r or r.get("same_bits_again") is False]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
