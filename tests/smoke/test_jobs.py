"""Job scripts in a chain: each reads what the last one wrote.

Scripts that start workers are submitted to a cluster of one node. The others run as a separate
process, as any job does. Their run files are a smaller version of the quickstart's.
"""

import contextlib
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import find_free_ports

from trainrig.corpus.read import RawPage
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, initialise
from trainrig.train import checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    *("curate", "ngrams", "classifier", "tokenizer", "tokens"),
    *("pretrain", "conversations", "posttrain", "rl", "score", "evaluate", "embed"),
    *("export", "sweep", "mixture", "teacher", "sample", "constitutional", "index"),
)
# These have Ray workers, or map splits over them; the others would use the same functions.
ON_RAY = {"curate", "pretrain", "posttrain", "rl", "embed", "sweep", "mixture"}
WORDS = (
    *("wharf", "lantern", "copper", "thistle", "meadow", "harvest", "kettle", "orchard", "saddle"),
    *("gravel", "willow", "ferry", "anvil", "barley", "cobble", "drizzle", "ember", "furrow"),
)
# A separate process: Ray keeps its authentication mode as long as a process lives.
SUBMIT = """
import json, sys, time
from ray.job_submission import JobSubmissionClient

address, runtime_env = sys.argv[1], json.loads(sys.argv[2])
client = JobSubmissionClient(address)
for line in sys.stdin:
    job = client.submit_job(entrypoint=json.loads(line), runtime_env=runtime_env)
    while not client.get_job_status(job).is_terminal():
        time.sleep(0.1)
    info = client.get_job_info(job)
    ended = {"state": str(info.status.value), "code": info.driver_exit_code}
    print(json.dumps({**ended, "output": client.get_job_logs(job)}), flush=True)
"""
RUNTIME_ENV = {
    "working_dir": str(ROOT),
    # A job needs only the package, its script and run file.
    "excludes": [".git", "/tests", "/docs"],
    "env_vars": {"PYTHONPATH": "platform"},
}


@dataclass
class Cluster:
    """A Ray head for these tests, and a process that submits jobs to it."""

    folder: Path
    environment: dict[str, str]
    _client: subprocess.Popen[str]
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)  # results by script

    def run(self, script: str, *arguments: str) -> dict[str, Any]:
        """Run one job to its end, and return its state, exit code and output."""
        words = ["python", f"jobs/{script}.py", *arguments]
        if script not in ON_RAY:
            return self._run_alone(words)
        entrypoint = shlex.join(words)
        self._client.stdin.write(json.dumps(entrypoint) + "\n")
        self._client.stdin.flush()
        answer = self._client.stdout.readline()
        assert answer, f"the submitting process ended: {self._client.poll()}"
        return json.loads(answer)

    def _run_alone(self, words: list[str]) -> dict[str, Any]:
        """Run the script as a separate process, without a cluster, and return its result."""
        ended = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=self.environment | {"PYTHONPATH": "platform"},
        )
        state = "FAILED" if ended.returncode else "SUCCEEDED"
        return {"state": state, "code": ended.returncode, "output": ended.stdout}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start one node of four logical CPUs; all its processes end with it."""
    binaries = Path(sys.executable).parent
    kept = {n: v for n, v in os.environ.items() if not n.startswith("RAY_") and n != "PYTHONPATH"}
    environment = kept | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",  # where entrypoints find `python`
        "RAY_AUTH_MODE": "disabled",  # on the loopback interface alone
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    gcs, dashboard, agent = find_free_ports(3)
    address = f"http://127.0.0.1:{dashboard}"
    submit = [sys.executable, "-c", SUBMIT, address, json.dumps(RUNTIME_ENV)]
    # The path is not below pytest's folder, because socket paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as sockets:
        options = [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--temp-dir={sockets}"]
        options += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
        # Jobs are not accepted on a port where another cluster's agent listens.
        options += [f"--dashboard-agent-listen-port={agent}"]
        options += ["--include-dashboard=true", "--num-cpus=4", "--object-store-memory=134217728"]
        head = subprocess.Popen([binaries / "ray", "start", "--head", "--block", *options], **quiet)
        with kill_at_end(head):
            wait_for_answer(f"{address}/api/version", head)
            pipes = quiet | {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(submit, **pipes) as client, kill_at_end(client):
                yield Cluster(tmp_path_factory.mktemp("jobs"), environment, client)


@contextlib.contextmanager
def kill_at_end(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill `process` and all its descendants, and no other process, when the block ends."""
    try:
        yield
    finally:
        family = [psutil.Process(process.pid)] if process.poll() is None else []
        family += [child for parent in family for child in parent.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
        psutil.wait_procs(family)


def wait_for_answer(url: str, server: subprocess.Popen[Any]) -> None:
    """Wait until `url` answers, and fail if its server ends instead."""
    while True:
        assert server.poll() is None, "ray start ended"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.2)


def write_archive(path: Path, seed: int) -> str:
    """Write thirty pages of plain text without common sentences."""
    dice = random.Random(seed)
    pages = []
    for number in range(30):
        lines = [" ".join(dice.choices(WORDS, k=9)).capitalize() + "." for _ in range(12)]
        body = "\n".join(lines).encode()
        url = f"https://{path.stem}.example/{number}"
        pages.append(RawPage(url, "text/plain", body, "2026-01-01T00:00:00Z", "utf-8"))
    write_warc(str(path), pages)
    return json.dumps([str(path)])


def write_conversations(path: Path) -> str:
    turns = [
        {"messages": [{"role": role, "content": word} for role in ("user", "assistant")]}
        for word in WORDS
    ]
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    return json.dumps([str(path)])


def write_problems(path: Path) -> str:
    problems = [{"question": word, "answer": str(n)} for n, word in enumerate(WORDS)]
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return json.dumps([str(path)])


def write_reward_model(model: str, folder: Path) -> None:
    """Write an untrained reward model of the sizes of `model`."""
    opened = checkpoint.open_model(model)
    config = opened.config.with_score_head()
    scorer = Decoder(config)
    initialise(scorer, seed=1)
    checkpoint.write_model(str(folder), config, opened.tokenizer, scorer.state_dict())


def write_unwanted(path: Path) -> str:
    """Write sixty lines of words that no page has."""
    path.write_text("".join(f"click here {n} to buy cheap offers now\n" for n in range(60)))
    return json.dumps([str(path)])


def write_principles(path: Path) -> str:
    """Write two principles."""
    path.write_text("Be kind.\n\nBe short.\n")
    return str(path)


def list_arguments(script: str, folder: Path) -> list[str]:
    """Return the arguments of one job, whose inputs are the results of earlier jobs."""
    names = ("documents", "tokenizer", "tokens", "model", "tuned", "scores", "exported")
    at = {name: str(folder / name) for name in names}
    if script == "export":
        return [at["tuned"], at["exported"]]
    loose = '[{kind = "Length", min_characters = 50}]'
    changes = {
        "curate": {
            "output": at["documents"],
            "sources.0.paths": write_archive(folder / "docs.warc.gz", 0),
            "sources.1.paths": write_archive(folder / "code.warc.gz", 1),
            "sources.0.filters": loose,
            "sources.1.filters": loose,
        },
        "ngrams": {
            "texts.paths": json.dumps([f"{folder}/documents/kept"]),
            "output": str(folder / "ngrams"),
            "pieces": '{kind = "Words"}',
        },
        "classifier": {
            "positives.paths": json.dumps([f"{folder}/documents/kept"]),
            "negatives.paths": write_unwanted(folder / "unwanted.txt"),
            "negatives.reading": '{documents = "line"}',
            "output": str(folder / "quality"),
        },
        "tokenizer": {
            "documents": at["documents"],
            "output": at["tokenizer"],
            "tokenizer.vocabulary": "300",
        },
        "tokens": {
            "documents": at["documents"],
            "tokenizer": at["tokenizer"],
            "output": at["tokens"],
            "held_out": "0.2",
            "workers": "0",
        },
        "pretrain": {
            "tokens": at["tokens"],
            "output": at["model"],
            "model.layers": "1",
            "model.channels": "32",
            "model.heads": "4",
            "model.kv_heads": "2",
            "batches.sequence_length": "32",
            "batches.global_batch": "4",
            "batches.micro_batch": "2",
            "training.steps": "4",
        },
        "conversations": {
            "tokenizer": at["model"],
            "output": str(folder / "conversations"),
            "sources.0.paths": write_conversations(folder / "lessons.jsonl"),
            "sources.1.paths": write_conversations(folder / "questions.jsonl"),
            "sequence_length": "64",
            "workers": "0",
        },
        "posttrain": {
            "checkpoint": at["model"],
            "conversations": str(folder / "conversations"),
            "output": at["tuned"],
            "workers": "1",
            "comparison.text": at["tokens"],
            "batches.sequence_length": "64",
            "batches.global_batch": "4",
            "batches.micro_batch": "4",
            "training.steps": "2",
        },
        "rl": {
            "checkpoint": at["tuned"],
            "output": str(folder / "taught"),
            "workers": "1",
            "prompts.paths": write_problems(folder / "problems.jsonl"),
            "rollouts.prompts": "2",
            "rollouts.samples": "2",
            "rollouts.micro_batch": "4",
            "rollouts.maximum_tokens": "8",
            "training.steps": "2",
        },
        "score": {
            "checkpoint": str(folder / "reward"),
            "rows": "conversations",
            "paths": write_conversations(folder / "answers.jsonl"),
            "output": str(folder / "scored"),
            "workers": "0",
        },
        "evaluate": {
            "checkpoint": at["tuned"],
            "tokens": at["tokens"],
            "conversations": str(folder / "conversations"),
            "output": at["scores"],
            "sequence_length": "64",
        },
        "embed": {
            "checkpoint": at["model"],
            "documents": at["documents"],
            "output": str(folder / "embeddings"),
        },
        "sweep": {
            "tokens": at["tokens"],
            "output": str(folder / "sweep"),
            "design.parameters": "[6000, 12000]",
            "design.tokens": "[1500]",
            "batches.sequence_length": "32",
            "training.fewest_steps": "4",
        },
        "mixture": {
            "tokens": at["tokens"],
            "output": str(folder / "mixture"),
            "proxy.parameters": "6000",
            "proxy.tokens": "1500",
            "proxy.runs": "6",
            "batches.sequence_length": "32",
            "training.fewest_steps": "4",
            "confirm": "0",
        },
        "teacher": {
            "checkpoint": at["tuned"],
            "conversations": str(folder / "conversations"),
            "entries": "8",
            "output": str(folder / "teacher"),
            "workers": "0",
        },
        "sample": {
            "checkpoint": at["tuned"],
            "prompts.paths": write_problems(folder / "problems.jsonl"),
            "prompt_tokens": "32",
            "maximum_tokens": "8",
            "samples": "2",
            "output": str(folder / "sampled"),
            "workers": "0",
        },
        "index": {
            "tokens": json.dumps([at["tokens"], str(folder / "conversations")]),
            "output": str(folder / "index"),
            "workers": "0",
        },
        "constitutional": {
            "checkpoint": at["tuned"],
            "principles": write_principles(folder / "principles.txt"),
            "prompts.paths": write_problems(folder / "problems.jsonl"),
            "prompts.template": "{{ question }}",
            "prompt_tokens": "32",
            "maximum_tokens": "8",
            "output": str(folder / "constitutional"),
            "workers": "0",
        },
    }[script]
    if script == "score":
        write_reward_model(at["model"], folder / "reward")
    run_file = {"tokens": "tokenize"}.get(script, script)
    folders = {"ngrams": "crawl", "classifier": "crawl", "rl": "reinforcement"}
    folders |= {"teacher": "distillation", "sample": "distillation", "embed": "encoder"}
    folders |= {"constitutional": "constitutional", "mixture": "mixture"}
    path = {**folders, "score": "preferences"}.get(script, "quickstart")
    given = [f"jobs/configs/{path}/{run_file}.toml"]
    for key, value in changes.items():
        given += ["--set", f"{key}={value}"]
    return given


def test_there_are_no_other_jobs() -> None:
    assert sorted(SCRIPTS) == sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_does_its_stage_and_prints_what_came_out(cluster: Cluster, script: str) -> None:
    for before in SCRIPTS[: SCRIPTS.index(script)]:
        if before not in cluster.ended:  # a test that is run alone runs what it needs
            cluster.ended[before] = cluster.run(before, *list_arguments(before, cluster.folder))
    ended = cluster.ended[script] = cluster.run(script, *list_arguments(script, cluster.folder))
    assert (ended["state"], ended["code"]) == ("SUCCEEDED", 0), ended["output"]
    # A job's output is all that it prints; Ray may add lines to stderr.
    results = [line for line in ended["output"].splitlines() if line.startswith("{")]
    assert len(results) == 1, ended["output"]
    printed = json.loads(results[0])
    expected = {
        "curate": ("documents_kept", 60),
        "ngrams": ("texts", 60),
        "classifier": ("positives", {"learnt": 47, "held_out": 13}),
        "tokenizer": ("vocabulary", 300),
        "tokens": ("vocabulary", 300),
        "pretrain": ("steps", 4),
        "conversations": ("train_conversations", len(WORDS)),
        "posttrain": ("steps", 2),
        "rl": ("steps", 2),
        "score": ("scored", len(WORDS)),
        "evaluate": ("step", 2),
        "embed": ("documents", 60),
        "export": ("step", 2),
        "sweep": ("points", 2),
        "mixture": ("runs", 6),
        "teacher": ("conversations", 2 * len(WORDS)),
        "sample": ("samples", 2 * len(WORDS)),
        "constitutional": ("prompts", len(WORDS)),
        "index": ("documents", 52 + len(WORDS)),
    }
    name, value = expected[script]
    assert printed[name] == value
    assert "Traceback" not in ended["output"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.stepz=4", "no key 'stepz' in Training; did you mean 'steps'?"),
        ("workers=two", "workers: should be 1 or more, or [fewest, most]"),
    ],
)
def test_a_job_with_a_bad_run_file_fails_by_the_users_fault(
    cluster: Cluster, change: str, message: str
) -> None:
    ended = cluster.run("pretrain", "jobs/configs/quickstart/pretrain.toml", "--set", change)
    assert (ended["state"], ended["code"]) == ("FAILED", ConfigError.exit_code)
    assert message in ended["output"]
    assert "Traceback" not in ended["output"]
