"""A storm: nodes come and go at random instants, some of them with a notice, by a trace that can be
played again. A run trains and a crawl is curated in it, and both come to what they do in calm."""

import contextlib
import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trouble

from trainrig import config, manifest
from trainrig.corpus.curate import curate
from trainrig.corpus.filters import Length
from trainrig.corpus.read import ReadSettings
from trainrig.corpus.run_file import Curation, CurationSource
from trainrig.launch.spot import trace
from trainrig.launch.spot.rehearse import Replay, build_environment, cluster_for
from trainrig.launch.spot.trace import LOST
from trainrig.train.run import goodput

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]

HERE = Path(__file__).parent


def pages(folder, files, texts):
    """So many files of made-up texts, each a split of its own."""
    dice = random.Random(files)
    folder.mkdir()
    for number in range(files):
        rows = "".join(
            json.dumps(
                {
                    "url": f"http://a/{number}/{row}",
                    "text": " ".join(f"word{dice.randrange(400)}" for _ in range(300)),
                }
            )
            + "\n"
            for row in range(texts)
        )
        (folder / f"{number:04d}.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    return str(folder)


def web(path):
    """A source whose every file is a split."""
    reading = ReadSettings(piece_bytes=1000)
    return CurationSource(name="web", paths=(path,), filters=(Length(),), reading=reading)


def train(job, cluster, tmp_path):
    """A driver that trains `job` on one worker or two."""
    path = tmp_path / "job.pickle"
    path.write_bytes(pickle.dumps(job))
    code = f"""
import pickle, sys
from pathlib import Path
from trainrig.job import exit_codes
from trainrig.train.elastic import trainer

if __name__ == "__main__":
    with exit_codes():
        trainer.run(pickle.loads(Path({str(path)!r}).read_bytes()), (1, 2))
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    return _driver([str(script)], cluster, tmp_path / "train.log")


def start_curation(run, cluster, tmp_path):
    """A driver that curates as `run` says."""
    run_file = tmp_path / f"{Path(run.output).name}.toml"
    run_file.write_text(config.to_toml(run))
    return _driver(["-m", "trainrig", "curate", str(run_file)], cluster, tmp_path / "curate.log")


def _driver(arguments, cluster, log):
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=build_environment(cluster),
            cwd=HERE,
            stdout=file,
            stderr=file,
        )


@contextlib.contextmanager
def ended(*processes):
    """Leave none behind."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def what_it_cost(replay, job, chaos):
    """The storm and the run's goodput, term by term."""
    spent = goodput.measure_goodput(job.folder)
    events = chaos.events(job.folder)
    redone = sum(
        max(0, event["step"] - later["step"])
        for event in events.all("attempt_failed")
        for later in events.all("attempt_started")
        if later["attempt"] == event["attempt"] + 1
    )
    return {
        "losses": sum(event.event == LOST for event in replay.played),
        "of them drained in time": replay.drained,
        "returns": sum(event.event != LOST for event in replay.played),
        "attempts": [event["why"] for event in events.all("attempt_started")],
        "steps redone": redone,
        "goodput": round(spent.share, 3),
        "seconds": {name: round(value, 1) for name, value in vars(spent).items()},
    }


def assert_trained_as_in_calm(job, calm, chaos):
    found, wanted = chaos.what_came_of(job), chaos.what_came_of(calm)
    for name in ("updates", "held out", "samples"):
        assert found[name] == wanted[name], name


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_short_storm_changes_no_loss_and_no_document(undisturbed, chaos, tmp_path):
    calm = undisturbed(60)
    job = trouble.slowed(calm, str(tmp_path / "run"), seconds=0.06)
    source = web(pages(tmp_path / "pages", 16, 60))
    straight = Curation(output=str(tmp_path / "straight"), workers=0, sources=(source,))
    wanted = curate(straight)
    run = straight.model_copy(update={"output": str(tmp_path / "out"), "workers": 1})
    # Two workers on three nodes: at least one of them is on a node that goes.
    events = [
        trace.Event(11.0, "a", "lost", 6.0),
        trace.Event(14.0, "b", "lost"),
        trace.Event(15.0, "a", "back"),
        trace.Event(16.0, "b", "back"),
    ]
    path = str(tmp_path / "storm.csv")
    trace.write(path, events)
    with cluster_for(trace.read(path), steady=1, cpus=1) as cluster:
        training = train(job, cluster, tmp_path)
        with ended(training):
            chaos.events(job.folder).wait("first_step")
            replay = Replay(cluster, events)
            replay.start()
            curating = start_curation(run, cluster, tmp_path)
            with ended(curating):
                assert curating.wait(300) == 0, (tmp_path / "curate.log").read_text()[-2000:]
                assert training.wait(300) == 0, (tmp_path / "train.log").read_text()[-2000:]
            replay.stop()
    made = manifest.read_manifest(run.output)
    assert (made.content, made.counts) == (wanted.content, wanted.counts)
    assert_trained_as_in_calm(job, calm, chaos)
    assert sum(event.event == LOST for event in replay.played) == 2
    assert len(chaos.events(job.folder).all("attempt_started")) > 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_minutes_of_storm_change_no_loss_and_no_document(
    undisturbed, chaos, write_result, tmp_path
):
    seconds = float(os.environ.get("STORM_SECONDS", "600"))
    seed = int(os.environ.get("STORM_SEED", str(int(time.time()))))
    # A loss about every 25 s; notices are a tenth of what Amazon gives and a fifth of Google's.
    events = trace.generate_trace(
        seed, ["a", "b", "c"], seconds, stays=60.0, away=12.0, notices=(0.0, 6.0, 12.0)
    )
    steps = int(seconds)  # at 0.25 s and more each: the storm has its way with all of them
    calm = undisturbed(steps)
    job = trouble.slowed(calm, str(tmp_path / "run"), seconds=0.25)
    source = web(pages(tmp_path / "pages", 24, 100))
    straight = Curation(output=str(tmp_path / "straight"), workers=0, sources=(source,))
    wanted = curate(straight)
    crawls = 0
    # Two workers with one place that lasts: at least one of them is on a node that goes.
    with cluster_for(events, steady=1, cpus=1) as cluster:
        training = train(job, cluster, tmp_path)
        with ended(training):
            chaos.events(job.folder).wait("first_step")
            replay = Replay(cluster, events)
            replay.start()
            while replay.is_playing() or training.poll() is None:  # one curation after the other
                output = str(tmp_path / f"out-{crawls}")
                run = straight.model_copy(update={"output": output, "workers": 1})
                curating = start_curation(run, cluster, tmp_path)
                with ended(curating):
                    assert curating.wait(900) == 0, (tmp_path / "curate.log").read_text()[-2000:]
                made = manifest.read_manifest(output)
                assert (made.content, made.counts) == (wanted.content, wanted.counts)
                crawls += 1
            assert training.wait(1800) == 0, (tmp_path / "train.log").read_text()[-2000:]
            replay.stop()
    assert_trained_as_in_calm(job, calm, chaos)
    assert len(chaos.events(job.folder).all("attempt_started")) > 1
    write_result(
        "spot_storm.json",
        {
            "seed": seed,
            "seconds of storm": seconds,
            "trace": [[each.second, each.node, each.event, each.notice] for each in events],
            "steps": steps,
            "curations": crawls,
            "byte_equal": True,
            **what_it_cost(replay, job, chaos),
        },
    )
