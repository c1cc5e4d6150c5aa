"""Stages on two nodes, one of which dies, and another of which joins, make the same bytes."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.faults import Aside
from support.file_hashes import hash_files
from support.raylets import Raylets
from support.waiting import wait_until

from trainrig import config, storage
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation_settings import CurationSource
from trainrig.corpus.read import RawPage, ReadSettings
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.ray_runtime import ray_session
from trainrig.scaling.laws.runs_table import RUNS_FILE
from trainrig.scaling.sweep.sweep import Sweep, sweep
from trainrig.scaling.sweep.trial import is_over

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]
WHEN = "2024-05-18T01:58:10Z"
FILES = 24
WORDS = 60_000  # words of a file


def write_pages(folder: Path) -> None:
    """Write FILES archives of pages, which take about a second each to curate."""
    draw = random.Random(1)
    words = draw.choices(["the", "of", "and", "river", "bridge", "letter", "were"], k=WORDS)
    for number in range(FILES):
        draw.shuffle(words)
        texts = (" ".join(words[at : at + 300]) + "." for at in range(0, WORDS, 300))
        pages = [
            RawPage(f"http://web.example/{number}-{at}", "text/plain", text.encode(), WHEN, "utf-8")
            for at, text in enumerate(texts)
        ]
        write_warc(str(folder / f"{number}.warc.gz"), pages)


def run_on_changing_nodes(
    raylets: Raylets, stage: Callable[[], object], is_under_way: Callable[[], object]
) -> None:
    """Run `stage` on two nodes; once it is under way, kill one of them, and then add another.

    The stage runs in a thread, because Ray's helper ties the lifetime of a node to the thread that
    adds it.
    """
    aside = Aside(stage)
    wait_until(lambda: is_under_way() or not aside.is_alive())
    if not aside.is_alive():
        aside.end()  # raises the stage's error
    raylets.die()
    raylets.come()
    assert aside.is_alive(), "the stage ended before the nodes changed"
    aside.end()


def test_a_curation_that_loses_a_node_and_gets_another_makes_the_same_bytes(
    several_raylets: Raylets, tmp_path: Path
) -> None:
    write_pages(tmp_path)
    reading = ReadSettings(piece_bytes=150_000)  # a piece for each of these files
    source = CurationSource(name="web", paths=(f"{tmp_path}/*.warc.gz",), reading=reading)
    runs = {
        workers: Curation(output=f"{tmp_path}/out-{workers}", workers=workers, sources=(source,))
        for workers in (0, 2)
    }
    curate(runs[0])
    ray_session.join()
    several_raylets.shrink_to(2)
    changed = runs[2].output
    run_on_changing_nodes(
        several_raylets,
        lambda: curate(runs[2]),
        lambda: any(path.endswith(".parquet") for path in storage.list_files(changed)),
    )
    made = hash_files(changed)
    assert made == hash_files(runs[0].output)
    assert sum(path.startswith("kept/") for path in made) == FILES


def build_sweep(tokens: str, output: Path) -> Sweep:
    """Return a sweep of eight runs."""
    pairs = [(size, read) for size in (6e3, 12e3) for read in (1_500.0, 3_000.0, 6_000.0, 9_000.0)]
    settings = {
        "stage": "sweep",
        "tokens": tokens,
        "output": str(output),
        "design": {"kind": "Points", "pairs": pairs},
        "batches": {"sequence_length": 32, "micro_batch": 8, "epochs": 8},
        "training": {"fewest_steps": 24, "checkpoint_every": 4},
    }
    return config.build(Sweep, settings, "sweep.toml")


def test_a_sweep_that_loses_a_node_and_gets_another_makes_the_same_table(
    several_raylets: Raylets, make_tokens: Callable[[Path], str], tmp_path: Path
) -> None:
    tokens = make_tokens(tmp_path)
    straight = build_sweep(tokens, tmp_path / "straight")
    changed = build_sweep(tokens, tmp_path / "changed")
    ray_session.join()
    several_raylets.shrink_to(2)
    sweep(straight)
    trials = Path(changed.output, "trials")
    run_on_changing_nodes(
        several_raylets,
        lambda: sweep(changed),
        lambda: any(is_over(str(folder)) for folder in trials.glob("*/*")),
    )
    tables = [
        pq.read_table(Path(run.output, RUNS_FILE)).drop_columns(["seconds", "cost"])
        for run in (straight, changed)
    ]
    assert tables[0] == tables[1] and len(tables[0]) == 8
