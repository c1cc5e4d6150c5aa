"""The whole data path by `trainrig submit`, on two nodes that have only the upload.

Pretraining is stopped midway and submitted again. The results must have the same bytes as the
results of the same commands on one machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.two_nodes import two_nodes
from support.waiting import wait_until

from trainrig.launch.supervise.run_record import Home
from trainrig.train.run import metrics

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(1200)]

PATIENCE = 300.0  # s: a bound for broken code
STEPS = 400

WORDS = "wharf lantern copper thistle meadow harvest kettle orchard saddle gravel willow ferry"
CURATE = """
stage = "curate"
output = "documents"
workers = 2

[[sources]]
name = "pages"
paths = ["pages.jsonl"]
filters = [{ kind = "Length", min_characters = 50 }]
"""
TOKENIZER = """
stage = "tokenizer"
documents = "documents"
output = "tokenizer"

[tokenizer]
kind = "ByteLevelBPE"
vocabulary = 300
"""
TOKENIZE = """
stage = "tokenize"
documents = "documents"
tokenizer = "tokenizer"
output = "tokens"
workers = 2
held_out = 0.2
"""
PRETRAIN = f"""
stage = "pretrain"
tokens = "tokens"
output = "model"
workers = 2

[model]
layers = 1
channels = 32
heads = 4
kv_heads = 2
positions = 64

[batches]
sequence_length = 32
global_batch = 4
micro_batch = 2
epochs = 1e6

[training]
steps = {STEPS}
checkpoints.every = 100
virtual_workers = 2

[training.optimizer]
kind = "AdamW"
lr = 1e-3
"""
EVALUATE = """
stage = "evaluate"
checkpoint = "model"
tokens = "tokens"
output = "scores"
sequence_length = 32
"""
RUN_FILES = {
    "curate": CURATE,
    "tokenizer": TOKENIZER,
    "tokenize": TOKENIZE,
    "pretrain": PRETRAIN,
    "evaluate": EVALUATE,
}
OUTPUTS = dict(zip(RUN_FILES, ("documents", "tokenizer", "tokens", "model", "scores"), strict=True))


@dataclass
class User:
    """A user with a command line."""

    folder: Path
    environment: dict[str, str]

    def does(self, *arguments: str, expect: int = 0) -> str:
        """Run `trainrig` and return its output."""
        ended = subprocess.run(
            [sys.executable, "-m", "trainrig", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=PATIENCE,
        )
        assert ended.returncode == expect, (arguments, ended.stderr)
        return ended.stdout


@pytest.fixture
def submitting(tmp_path: Path) -> Iterator[User]:
    """Yield a user in a separate folder, with a cluster of two nodes of one CPU each."""
    with two_nodes() as cluster:
        cluster.start_head(1)
        cluster.add_node("second", 1)
        cluster.wait_for_nodes(2)
        kept = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        found = {
            "RAY_AUTH_TOKEN_PATH": str(cluster.token),
            "RAY_API_SERVER_ADDRESS": cluster.address,
            "TRAINRIG_HOME": str(tmp_path / "home"),
        }
        yield User(_hash_folder(tmp_path / "submitted"), kept | found)


@pytest.fixture
def alone(tmp_path: Path) -> User:
    """Return a user in another folder, who has only this machine."""
    kept = {n: v for n, v in os.environ.items() if n != "RAY_ADDRESS"}
    return User(_hash_folder(tmp_path / "alone"), kept)


def _hash_folder(path: Path) -> Path:
    path.mkdir()
    words = WORDS.split()
    pages = [
        {"text": " ".join(words[(n * (k + 3) + k * k) % len(words)] for k in range(60)) + f" {n}."}
        for n in range(60)
    ]
    (path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    for verb, text in RUN_FILES.items():
        (path / f"{verb}.toml").write_text(text)
    return path


def stop_in_the_middle(user: User) -> dict[str, Any]:
    """Submit the pretraining, stop it during training, and return its result."""
    user.does("submit", "pretrain", "pretrain.toml", "--detach")
    (run,) = [r for r in Home(user.environment["TRAINRIG_HOME"]).list() if "pretrain" in r.id]
    model = str(user.folder / "model")
    wait_until(
        lambda: metrics.read_series(model), lambda: list(run.read_events()), seconds=PATIENCE
    )
    return dict(json.loads(user.does("stop", run.id, "--json")))


def test_the_whole_path_submitted_is_the_same_to_the_last_bit(
    submitting: User, alone: User
) -> None:
    for verb in RUN_FILES:
        if verb == "pretrain":
            ended = stop_in_the_middle(submitting)
            assert (ended["state"], ended["exit_code"]) == ("stopped", 75)
            assert 0 < ended["step"] < STEPS
            assert ended["tokens"] == ended["step"] * 4 * 32
        done = json.loads(submitting.does("submit", verb, f"{verb}.toml", "--json"))
        assert (done["state"], done["exit_code"]) == ("done", 0)
        fewer = ["--set", "workers=1"] if "workers" in RUN_FILES[verb] else []
        alone.does(verb, f"{verb}.toml", *fewer)
    one = submitting.folder
    other = alone.folder
    for verb in ("curate", "tokenizer", "tokenize"):
        assert list_files(one / OUTPUTS[verb]) == list_files(other / OUTPUTS[verb]), verb
    assert list_losses(one / "model") == list_losses(other / "model")
    for user in (submitting, alone):
        user.does("export", "model", "exported")  # merged from what each worker saved
    assert read_weights(one / "exported") == read_weights(other / "exported")
    assert read_counts(one / "scores") == read_counts(other / "scores")
    rows = json.loads(submitting.does("jobs", "--json"))
    assert {row["verb"]: row["state"] for row in rows} == dict.fromkeys(RUN_FILES, "done")
    (row,) = [row for row in rows if row["verb"] == "pretrain"]
    assert (row["step"], row["steps"], row["attempts"]) == (STEPS, STEPS, 2)
    assert 0 < row["goodput"] < 1


def list_files(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())["files"]


def read_counts(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())["counts"]


def list_losses(folder: Path) -> Any:
    return [(line["step"], line["train/loss"]) for line in metrics.read_series(str(folder))]


def read_weights(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert found
    return found
