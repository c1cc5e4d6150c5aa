"""Runs on Ray with a GPU per worker, killed and resized: `make gpu-ray`, which needs two GPUs.

`python tests/gpu/ray_runs.py [--device cpu] [--out FOLDER]` runs in an environment with Ray. Each
GPU belongs to a separate raylet on this machine, so one node can be lost while the other continues.
Ranks communicate by NCCL. All runs must have bit-identical losses, samples and weights. On CPUs,
where ranks use gloo, only the harness is tested.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOUND = [str(ROOT / "platform"), str(ROOT / "tests")]
sys.path[:0] = FOUND
# Ray's workers import the module that wraps the batches.
os.environ["PYTHONPATH"] = os.pathsep.join([*FOUND, os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from support import trouble  # noqa: E402
from support.faults import Aside, Events, read_results  # noqa: E402
from support.raylets import MEMORY, Raylets  # noqa: E402
from support.tiny_runs import tokenized  # noqa: E402

from trainrig.ray_runtime.ray_session import join  # noqa: E402
from trainrig.train.elastic import trainer  # noqa: E402
from trainrig.train.pretrain import prepare  # noqa: E402
from trainrig.train.run_file.run_files import Pretraining  # noqa: E402
from trainrig.train.training_job import TrainingJob  # noqa: E402

WORLD = 2
STEPS = 60
KILLS = 3
SECONDS = 0.05  # added to each micro-batch of a disturbed run
SAME = ("updates", "held out", "samples", "tensors")


class Nodes(Raylets):
    """A head without room for workers, and nodes with one GPU each, or none."""

    def __init__(self, gpus: bool) -> None:
        self._gpus = gpus
        self._added = 0
        super().__init__()

    def add(self) -> Any:
        """Add a node with the next GPU: the lost one, where one was lost."""
        number = self._added % WORLD
        self._added = self._added + 1
        options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": MEMORY, "wait": False}
        if self._gpus:
            options |= {"num_gpus": 1, "env_vars": {"CUDA_VISIBLE_DEVICES": str(number)}}
        return self._cluster.add_node(**options)

    def die(self) -> None:
        """Kill the last node."""
        super().die()
        self._added -= 1


def make_job(tokens: str, folder: Path) -> TrainingJob:
    """Return a job of a tiny deterministic decoder, and make its run folder."""
    folder.mkdir(parents=True)
    run = {
        "tokens": tokens,
        "output": str(folder),
        "workers": WORLD,
        "model": {"layers": 2, "channels": 64, "heads": 4, "kv_heads": 2, "positions": 48},
        "batches": {"sequence_length": 32, "global_batch": 8, "micro_batch": 2, "epochs": 1e6},
        "training": {
            "steps": STEPS,
            "checkpoints": {"every": 4, "keep": 2},
            "held_out": {"every": 6, "rows": 8},
            "faults": {"max_restarts": 3 * KILLS},
        },
    }
    return prepare(Pretraining.model_validate(run))


def kill_ranks(events: Events, nodes: Nodes) -> None:
    """Send SIGKILL to a rank of each of the first attempts, once it takes steps."""
    for number in range(KILLS):
        events.wait("first_step", number + 1)
        os.kill(events.ranks()[number % WORLD], signal.SIGKILL)


def lose_and_add_a_node(events: Events, nodes: Nodes) -> None:
    """Shrink from two workers to one, and grow back to two."""
    events.wait("first_step", 1)
    nodes.die()
    events.wait("first_step", 2)
    nodes.come()


DISTURBANCES: dict[str, tuple[tuple[int, int], Callable[[Events, Nodes], None] | None]] = {
    "two workers": ((2, 2), None),
    "one worker": ((1, 1), None),
    "two, ranks killed": ((2, 2), kill_ranks),
    "two, a node lost and another added": ((1, 2), lose_and_add_a_node),
}


def run_disturbed(
    job: TrainingJob,
    workers: tuple[int, int],
    disturb: Callable[[Events, Nodes], None] | None,
    nodes: Nodes,
) -> list[tuple[str, int]]:
    """Train `job` and return why each attempt was started, and on how many workers."""
    events = Events(job.folder)
    aside = None
    if disturb:
        job = trouble.slowed(job, job.folder, seconds=SECONDS)
        # The main thread adds nodes, as Ray's helper ties their lifetime to it.
        aside = Aside(lambda: trainer.run(job, workers))
        disturb(events, nodes)
        aside.end()
    else:
        trainer.run(job, workers)
    return [(event["why"], event["workers"]) for event in events.all("attempt_started")]


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a run gave other results, 2 where there are no two GPUs."""
    parser = argparse.ArgumentParser(prog="ray_runs.py", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=tempfile.gettempdir(), help="folder for the JSON file")
    asked = parser.parse_args(arguments)
    gpus = asked.device == "cuda"
    if gpus and (count := torch.cuda.device_count()) < WORLD:
        print(f"make gpu-ray: needs {WORLD} GPUs, and torch sees {count} here", file=sys.stderr)
        return 2
    nodes = Nodes(gpus)
    rows = list[dict[str, Any]]()
    straight: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="trainrig-") as base:
        os.environ["RAY_ADDRESS"] = nodes.address
        join()
        tokens = tokenized(Path(base, "tokens"))
        for name, (workers, disturb) in DISTURBANCES.items():
            job = make_job(tokens, Path(base, name.replace(" ", "-")))
            attempts = run_disturbed(job, workers, disturb, nodes)
            found = read_results(job)
            straight = straight or found
            # Checkpoint files of other numbers of ranks have other boundaries.
            compared = SAME if attempts[-1][1] == WORLD else SAME[:-1]
            other = [run for run in compared if found[run] != straight[run]]
            rows.append({"run": name, "attempts": attempts, "other": other})
            same = "the same bits" if not other else f"OTHER: {', '.join(other)}"
            print(f"{name:<36}{same:<16}{' '.join(f'{w} {n}' for w, n in attempts)}", flush=True)
    import ray  # imported only after the environment that Ray reads was set

    ray.shutdown()
    nodes.shutdown()
    now = datetime.datetime.now(datetime.UTC)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or "unknown",
        "device": torch.cuda.get_device_name() if gpus else "cpu",
        "torch": torch.__version__,
        "rows": rows,
    }
    path = Path(asked.out) / f"ray-runs-{now:%Y%m%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)
    return 1 if any(row["other"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
