"""Nodes that leave and join at random, some with a notice, by a trace that can be replayed.

A run trains and a crawl is curated meanwhile. Both give the same results as without node loss.
"""

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
from support import faults, trouble
from support.random_losses import generate_trace

from trainrig import config, manifest
from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.filters.filters import Length
from trainrig.corpus.read import ReadSettings
from trainrig.train.run import progress
from trainrig_contrib.spot_rehearsal import loss_trace
from trainrig_contrib.spot_rehearsal.loss_trace import LOST
from trainrig_contrib.spot_rehearsal.rehearse import Replay, build_environment, cluster_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]

HERE = Path(__file__).parent


def write_pages(folder, files, texts):
    """Write `files` files of made-up texts, each of which becomes a split."""
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


def make_source(path):
    """Return a source whose every file is a split."""
    reading = ReadSettings(piece_bytes=1000)
    return CurationSource(name="web", paths=(path,), filters=(Length(),), reading=reading)


def start_training(job, cluster, tmp_path):
    """Start a driver that trains `job` on one worker or two."""
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
    """Start a driver that runs the curation `run`."""
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
def ensure_ended(*processes):
    """Kill all of `processes` at the end of the block."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def measure_goodput(replay, job):
    """Return the trace's losses and the run's goodput, term by term."""
    spent = progress.measure_goodput(job.folder)
    events = faults.Events(job.folder)
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


def assert_equal_to_undisturbed(job, calm):
    found = faults.read_results(job)
    wanted = faults.read_results(calm)
    for name in ("updates", "held out", "samples"):
        assert found[name] == wanted[name], name


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_short_storm_changes_no_loss_and_no_document(undisturbed, tmp_path):
    calm = undisturbed(60)
    job = trouble.slowed(calm, str(tmp_path / "run"), seconds=0.06)
    source = make_source(write_pages(tmp_path / "pages", 16, 60))
    straight = Curation(output=str(tmp_path / "straight"), workers=0, sources=(source,))
    wanted = curate(straight)
    run = straight.model_copy(update={"output": str(tmp_path / "out"), "workers": 1})
    # Two workers run on three nodes, so at least one of them is on a node that is lost.
    events = [
        loss_trace.Event(11.0, "a", "lost", 6.0),
        loss_trace.Event(14.0, "b", "lost"),
        loss_trace.Event(15.0, "a", "back"),
        loss_trace.Event(16.0, "b", "back"),
    ]
    path = str(tmp_path / "storm.csv")
    loss_trace.write(path, events)
    with cluster_for(loss_trace.read(path), steady=1, cpus=1) as cluster:
        training = start_training(job, cluster, tmp_path)
        with ensure_ended(training):
            faults.Events(job.folder).wait("first_step")
            replay = Replay(cluster, events)
            replay.start()
            curating = start_curation(run, cluster, tmp_path)
            with ensure_ended(curating):
                assert curating.wait(300) == 0, (tmp_path / "curate.log").read_text()[-2000:]
                assert training.wait(300) == 0, (tmp_path / "train.log").read_text()[-2000:]
            replay.stop()
    made = manifest.read_manifest(run.output)
    assert (made.content, made.counts) == (wanted.content, wanted.counts)
    assert_equal_to_undisturbed(job, calm)
    assert sum(event.event == LOST for event in replay.played) == 2
    assert len(faults.Events(job.folder).all("attempt_started")) > 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_minutes_of_storm_change_no_loss_and_no_document(undisturbed, write_result, tmp_path):
    seconds = float(os.environ.get("STORM_SECONDS", "600"))
    seed = int(os.environ.get("STORM_SEED", str(int(time.time()))))
    # A node is lost about every 25 s. Notices are a tenth of Amazon's and a fifth of Google's.
    events = generate_trace(
        seed, ["a", "b", "c"], seconds, stays=60.0, away=12.0, notices=(0.0, 6.0, 12.0)
    )
    # steps of at least 0.25 s each, so that the whole trace happens during the run
    steps = int(seconds)
    calm = undisturbed(steps)
    job = trouble.slowed(calm, str(tmp_path / "run"), seconds=0.25)
    source = make_source(write_pages(tmp_path / "pages", 24, 100))
    straight = Curation(output=str(tmp_path / "straight"), workers=0, sources=(source,))
    wanted = curate(straight)
    crawls = 0
    # Two workers share one permanent slot, so at least one of them is on a node that is lost.
    with cluster_for(events, steady=1, cpus=1) as cluster:
        training = start_training(job, cluster, tmp_path)
        with ensure_ended(training):
            faults.Events(job.folder).wait("first_step")
            replay = Replay(cluster, events)
            replay.start()
            # starts one curation after the other
            while replay.is_playing() or training.poll() is None:
                output = str(tmp_path / f"out-{crawls}")
                run = straight.model_copy(update={"output": output, "workers": 1})
                curating = start_curation(run, cluster, tmp_path)
                with ensure_ended(curating):
                    assert curating.wait(900) == 0, (tmp_path / "curate.log").read_text()[-2000:]
                made = manifest.read_manifest(output)
                assert (made.content, made.counts) == (wanted.content, wanted.counts)
                crawls += 1
            assert training.wait(1800) == 0, (tmp_path / "train.log").read_text()[-2000:]
            replay.stop()
    assert_equal_to_undisturbed(job, calm)
    assert len(faults.Events(job.folder).all("attempt_started")) > 1
    write_result(
        "spot_storm.json",
        {
            "seed": seed,
            "seconds of storm": seconds,
            "trace": [[event.second, event.node, event.event, event.notice] for event in events],
            "steps": steps,
            "curations": crawls,
            "byte_equal": True,
            **measure_goodput(replay, job),
        },
    )
