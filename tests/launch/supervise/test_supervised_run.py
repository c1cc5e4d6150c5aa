"""A real command under supervisors: stopped and resumed, it writes the same bytes."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import tiny_runs
from support.waiting import wait_until

from trainrig import config, manifest, storage
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.entrypoint import build_verb_command
from trainrig.launch.supervise.job_supervisor import JobSupervisor, Pace
from trainrig.launch.supervise.run_record import Home
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

PATIENCE = 120.0  # s: ends a broken test
FILES = 80  # each becomes a split


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Write many files of made-up documents and a tokenizer, and return both folders."""
    base = tmp_path_factory.mktemp("inputs")
    folder = str(base / "curated")
    dice = random.Random(7)
    source = CurationSource(name="made-up", paths=("made-up.warc",))
    stage = manifest.claim(folder, Curation(output=folder, workers=0, sources=(source,)), {})
    Path(stage.build_path("kept")).mkdir()
    words = [word for group in tiny_runs.WORDS.values() for word in group]
    files = {}
    for number in range(FILES):
        rows = [
            {
                "id": f"{number:016x}{row:016x}",
                "url": f"https://{number}.example/{row}",
                "source": "made-up",
                "language": "",
                "text": " ".join(dice.choices(words, k=400)),
            }
            for row in range(8)
        ]
        name = f"kept/{number:03d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), stage.build_path(name))
        files[name] = manifest.compute_file_sum(stage.build_path(name))
    stage.finish({"kept": FILES * 8}, files)
    tokenizer = str(base / "tokenizer")
    settings = ByteLevelBPE(vocabulary=300)
    make_tokenizer(TokenizerTraining(documents=folder, output=tokenizer, tokenizer=settings))
    return folder, tokenizer


def run_file(inputs, output):
    documents, tokenizer = inputs
    return Tokenization(
        documents=documents,
        tokenizer=tokenizer,
        output=str(output),
        workers=0,
        held_out=0.2,
        shard_bytes=1024,
    )


def submit(home, run, **limits):
    """Record a run as a submission does."""
    record = home.create(run.verb, run.output)
    storage.write(record.run_file, config.to_toml(run).encode())
    given = Limits(**limits).model_dump(mode="json")
    return record, record.take_attempt("job-{attempt}", "http://here", "", given)


def attend_in_process(home, record, attempt):
    command = [sys.executable, "-m", "trainrig.launch.supervise.entrypoint", "--home", home.path]
    command += ["--run", record.id, "--attempt", str(attempt.number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path, inputs):
    straight = tokenize(run_file(inputs, tmp_path / "straight"))
    home = Home(str(tmp_path / "home"))
    run = run_file(inputs, tmp_path / "out")
    record, first = submit(home, run)
    pace = Pace(heartbeat=0.2, look=0.02, poll=0.01)
    supervisor = JobSupervisor(record, first, Limits(), build_verb_command(record), pace)
    thread = threading.Thread(target=supervisor.supervise)
    thread.start()
    wait_until(lambda: len(storage.list_files(f"{run.output}/scratch")) >= 5, every=0.005)
    record.request_stop()
    thread.join(PATIENCE)
    ended = record.read_status().ended
    assert (ended["state"], ended["exit_code"], ended["forced"]) == ("stopped", 75, False)
    assert not storage.exists(f"{run.output}/manifest.json")
    done = len(storage.list_files(f"{run.output}/scratch"))
    assert done >= 5, "what was whole is kept"

    record, second = submit(home, run)
    process = attend_in_process(home, record, second)
    assert (process.returncode, record.read_state()) == (0, "done"), process.stderr
    made = manifest.read_manifest(run.output)
    assert made.content == straight.content
    for name in made.files:
        assert storage.read(f"{run.output}/{name}") == storage.read(f"{tmp_path}/straight/{name}")
    log = b"\n".join(record.open_tail().read_new_lines()).decode()
    assert "continuing an earlier run" in log and "stopped by SIGTERM" in log
    assert "continuing an earlier run" in process.stdout, "Ray's job log has it too"


@pytest.mark.slow
def test_an_invalid_run_file_is_refused_with_its_own_line(tmp_path, inputs):
    home = Home(str(tmp_path / "home"))
    run = run_file(inputs, tmp_path / "out")
    record, attempt = submit(home, run.model_copy(update={"tokenizer": f"{tmp_path}/none"}))
    process = attend_in_process(home, record, attempt)
    ended = record.read_status().ended
    assert (process.returncode, ended["state"], ended["cause"]) == (2, "failed", "data")
    assert f"{tmp_path}/none: no such folder" in ended["message"]


@pytest.mark.slow
def test_invalid_limits_end_the_attempt_and_not_only_its_job(tmp_path, inputs):
    home = Home(str(tmp_path / "home"))
    run = run_file(inputs, tmp_path / "out")
    record, attempt = submit(home, run, hardware=f"{tmp_path}/none.toml")
    process = attend_in_process(home, record, attempt)
    assert process.returncode == 2 and "none.toml" in process.stderr
    ended = record.read_status().ended
    assert (ended["state"], ended["cause"]) == ("refused", "input")


def test_an_unrecorded_run_is_refused(tmp_path, inputs):
    command = [
        sys.executable,
        "-m",
        "trainrig.launch.supervise.entrypoint",
        "--home",
        str(tmp_path),
    ]
    process = subprocess.run(
        [*command, "--run", "curate-x-000000", "--attempt", "1"], capture_output=True, text=True
    )
    assert process.returncode == 2 and "no run 'curate-x-000000'" in process.stderr
