"""Table of attention kernels by `make gpu`, on documents of 128 to 8,192 tokens.

`python tests/gpu/attention_table.py [--device cpu --sizes tiny] [--out FOLDER]`. Each row is one
kernel on rows of documents of one length: its forward and backward time, its error against plain
products in float64, and whether it is reproducible in deterministic mode. All rows are written to a
JSON file in the folder, and the table to the terminal. The fastest correct kernel should become the
default of `training.attention.kernel`.

On a CPU, only `plain` and uncompiled flex_attention run. The other rows give a reason.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT / "tests")]

import torch  # noqa: E402
from gpu.attention_rows import Drawn, Rows  # noqa: E402
from gpu.own_process import alone  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

from trainrig.models.kernels.blocked_attention import blocked_attention  # noqa: E402
from trainrig.models.kernels.kernel_choice import AttentionCase, Kernel, find_obstacle  # noqa: E402
from trainrig.models.kernels.kernel_support import read_card  # noqa: E402
from trainrig.models.kernels.prepared_rows import PreparedRows, attend_prepared, prepare_rows  # noqa: E402

KERNELS: tuple[Kernel, ...] = ("flash", "flex", "triton", "plain")
WARM = 3
TIMED = 10
# Largest error as a share of the norm of float64 products: bfloat16 rounds to 8 bits.
RIGHT = {"bfloat16": 2e-2, "float32": 1e-5}


@dataclass(frozen=True)
class Size:
    """Rows of a micro-batch, and lengths of their documents."""

    rows: int
    tokens: int  # tokens of a row
    heads: int
    kv_heads: int
    width: int
    lengths: tuple[int, ...]
    checked: int  # tokens of the rows whose numbers are compared with float64


SIZES = {
    "tiny": Size(1, 64, 2, 1, 16, (16, 64), 64),
    "8B": Size(2, 8192, 32, 8, 128, (128, 512, 2048, 8192), 2048),
}
USUAL = ["8B"]
# Features besides documents; FlashAttention-2 computes only the first two.
FEATURES: dict[str, dict[str, Any]] = {
    "documents": {},
    "window of an eighth": {},
    "cap and sinks": {"cap": 30.0, "sinks": True},
}


@dataclass(frozen=True)
class Row:
    """One row of the table, measured in its own process."""

    size: str
    feature: str
    length: int  # tokens of a document
    kernel: Kernel

    def draw(self, tokens: int, device: str) -> Drawn:
        """Draw rows of `tokens` whose documents are all of the same length."""
        size = SIZES[self.size]
        settings = dict(FEATURES[self.feature])
        if self.feature.startswith("window"):
            settings["window"] = max(2, self.length // 8)
        shape = Rows(size.rows, size.heads, size.kv_heads, tokens, tokens, size.width, **settings)
        drawn = shape.draw(device, torch.bfloat16 if device == "cuda" else torch.float32)
        at = torch.arange(tokens, device=device) // self.length
        return dataclasses.replace(drawn, documents=at.expand(size.rows, -1).contiguous())


def plan_rows(sizes: Sequence[str]) -> list[Row]:
    """Return all rows, the kernels of one length side by side."""
    return [
        Row(size, feature, length, kernel)
        for size in sizes
        for feature in FEATURES
        for length in SIZES[size].lengths
        for kernel in KERNELS
    ]


def measure_row(row: Row, device: str) -> dict[str, Any]:
    """Measure one row, in a process that measures no other."""
    size = SIZES[row.size]
    small = row.draw(min(size.checked, size.tokens), device)
    compute = str(small.parts[0].dtype).removeprefix("torch.")
    changes = (row.feature,) if small.given.changes_logits else ()
    case = AttentionCase(size.width, compute, changes)
    obstacle = find_obstacle(row.kernel, case, read_card(torch.device(device)))
    if obstacle and not (device == "cpu" and row.kernel == "flex"):
        return {**dataclasses.asdict(row), "cannot": obstacle}
    torch.use_deterministic_algorithms(True)
    with _learn_on(device):
        first = small.attend(row.kernel)
        again = small.attend(row.kernel)
        exact = small.attend_plainly(torch.float64)
        errors = [
            float((a.double() - b).norm() / b.norm()) for a, b in zip(first, exact, strict=True)
        ]
        del exact
        measured = _time(row, device)
    return {
        **dataclasses.asdict(row),
        "error": max(errors),
        "is_right": max(errors) <= RIGHT[compute],
        "same_bits_again": all(map(torch.equal, first, again)),
        **measured,
    }


@contextlib.contextmanager
def _learn_on(device: str) -> Iterator[None]:
    """Make flex_attention differentiate on a CPU as well, where it refuses to."""
    if device == "cuda":
        yield
        return
    with patch.object(torch_flex, "_validate_device", lambda *_: None):
        yield


def _time(row: Row, device: str) -> dict[str, Any]:
    """Return the milliseconds of preparing rows and of one layer's forward and backward pass.

    Rows are prepared once for all layers. Each figure is the median, with the range.
    """
    drawn = row.draw(SIZES[row.size].tokens, device)
    given = drawn.given
    sinks = None if drawn.sinks is None else drawn.sinks.requires_grad_()
    parts = [part.requires_grad_() for part in drawn.parts]
    learnt = parts if sinks is None else [*parts, sinks]
    settings: dict[str, Any] = {"scale": given.scale, "window": given.window, "cap": given.cap}

    def prepare() -> PreparedRows | None:
        sizes = given.queries, given.keys
        where = drawn.documents, sizes, parts[0].device
        return prepare_rows(row.kernel, *where, given.window, given.causal)

    rows = prepare()
    times: dict[str, list[float]] = {"prepare": [], "forward": [], "backward": []}
    for _ in range(WARM + TIMED):
        began = _now(device)
        prepare()
        prepared = _now(device)
        if rows is None:
            documents = {"documents_BS": drawn.documents}
            seen = blocked_attention(*parts, sinks_H=sinks, **documents, **settings)
        else:
            seen = attend_prepared(*parts, rows, sinks_H=sinks, **settings)
        forward = _now(device)
        torch.autograd.grad(seen, learnt, drawn.gradient)
        ends = began, prepared, forward, _now(device)
        for name, begin, end in zip(times, ends, ends[1:], strict=False):
            times[name].append(1e3 * (end - begin))
    found: dict[str, Any] = {}
    for name, spent in times.items():
        timed = spent[WARM:]
        found[f"{name}_ms"] = statistics.median(timed)
        found[f"{name}_ms_from_to"] = [min(timed), max(timed)]
    if device == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _line(row: dict[str, Any]) -> str:
    named = f"{row['feature']:<20}{row['length']:>6}  {row['kernel']:<8}"
    if "failed" in row or "cannot" in row:
        return named + row.get("failed", row.get("cannot", ""))
    spread = "{:.2f} to {:.2f}".format(*row["backward_ms_from_to"])
    return (
        f"{named}{row['prepare_ms']:>9.3f}{row['forward_ms']:>9.3f}{row['backward_ms']:>10.3f}"
        f"  ({spread})  {row['error']:.1e}  {'right' if row['is_right'] else 'WRONG'}"
        f"  {'same bits' if row['same_bits_again'] else 'OTHER BITS'}"
    )


def name_fastest(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the fastest kernel that is right and reproducible, for each feature and length."""
    fastest: dict[str, tuple[float, str]] = {}
    for row in rows:
        if not (row.get("is_right") and row.get("same_bits_again")):
            continue
        case = f"{row['feature']}, {row['length']}"
        taken = row["forward_ms"] + row["backward_ms"]
        fastest[case] = min(fastest.get(case, (taken, row["kernel"])), (taken, row["kernel"]))
    return {case: kernel for case, (_, kernel) in fastest.items()}


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a row failed, or a kernel was wrong or not reproducible."""
    parser = argparse.ArgumentParser(prog="attention_table.py", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=USUAL)
    parser.add_argument("--out", default=tempfile.gettempdir(), help="folder for the JSON file")
    asked = parser.parse_args(arguments)
    now = datetime.datetime.now(datetime.UTC)
    path = Path(asked.out) / f"attention-table-{now:%Y%m%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "date": now.isoformat(timespec="seconds"),
        "device": alone(_describe_device, asked.device),
        "torch": torch.__version__,
        "rows": rows,
    }
    print(f"{'':<20}{'tokens':>6}  kernel   prepare  forward  backward ms, error of the norm")
    for row in plan_rows(asked.sizes):
        result = alone(measure_row, row, asked.device)
        if "failed" in result:
            result = {**dataclasses.asdict(row), **result}
        rows.append(result)
        found["fastest"] = name_fastest(rows)
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(_line(result), flush=True)
    print(f"fastest that is right: {found['fastest']}; {path}")
    bad = [
        row
        for row in rows
        if "failed" in row or row.get("is_right") is False or row.get("same_bits_again") is False
    ]
    return 1 if bad else 0


def _describe_device(device: str) -> dict[str, Any]:
    card = read_card(torch.device(device))
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"name": name, **dataclasses.asdict(card)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
