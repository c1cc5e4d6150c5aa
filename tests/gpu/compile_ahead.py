"""Fill the compiler's cache with the graphs that the compiled rows of the benchmark table need.

`python tests/gpu/compile_ahead.py [--device cpu --sizes tiny]` runs from `make gpu` on all cores
while the tests run. Measured rows have the device to themselves, and would otherwise mostly wait
for the compiler.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

from gpu import step_table  # noqa: E402
from gpu.own_process import ROW_SECONDS, collect, start  # noqa: E402

from trainrig.parallel.mesh import join_group, use_device  # noqa: E402

LAYERS = 2  # layers of trainrig's models, whose layers all share a graph
# Compiled at once: a peer is compiled as a whole model, which needs the whole model's memory.
PEERS = 2


def compile_ahead(sizes: Sequence[str], device: str) -> None:
    """Compile the rows of `sizes` in parallel processes, except the peers of the largest size."""
    rows = [row for row in step_table.plan_rows(sizes, [True]) if row.compiled]
    ours = list(dict.fromkeys(row for row in rows if row.ours))
    peers = [row for row in rows if not row.ours and row.size != sizes[-1]]
    for some, at_once in ((ours, len(ours)), (peers, PEERS)):
        for first in range(0, len(some), at_once):
            begun = some[first : first + at_once]
            running = [start(compile_row, row, device) for row in begun]
            for row, process in zip(begun, running, strict=True):
                print(f"compiled {row.size} {row.loop}: {collect(process)}", flush=True)


def compile_row(row: step_table.Row, device: str) -> dict[str, Any]:
    """Take one step of `row`; our models get few layers, because all layers share a graph."""
    size = step_table.SIZES[row.size]
    if row.ours:
        size = dataclasses.replace(size, layers=LAYERS)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
        use_device(0 if device == "cuda" else None)
        join_group(0, 1, f"file://{folder}/store", timedelta(seconds=ROW_SECONDS))
        step, _ = (step_table.our_loop if row.ours else step_table.peer_loop)(row, size)
        step_table.run_timed(step, 0)
    return {"seconds": round(time.perf_counter() - began, 1)}


def main(arguments: Sequence[str]) -> None:
    """Compile the rows of the sizes that are named."""
    parser = argparse.ArgumentParser(prog="compile_ahead.py", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", nargs="+", choices=step_table.SIZES, default=step_table.USUAL)
    asked = parser.parse_args(arguments)
    compile_ahead(asked.sizes, asked.device)


if __name__ == "__main__":
    main(sys.argv[1:])
