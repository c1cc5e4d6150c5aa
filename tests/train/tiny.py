"""Fixtures of training and of later stages: tiny tokens, tiny runs, groups of ranks.

The conftest.py of each folder that uses them imports them.
"""

import hashlib
import json
import os
import pickle
import random
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from trainrig import manifest, storage
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.parallel.mesh import join_group
from trainrig.processes.fork_server import ForkedProcess, ForkServer, ServerAddress
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import prepare
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.training_job import TrainingJob

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
ENTRIES = 320  # entries of the tiny tokenizer: 256 bytes, 7 special tokens, 57 merges
WORDS = {
    "books": ["the", "sea", "is", "a", "grey", "mirror", "and", "nobody", "sleeps", "é"],
    "web": ["buy", "two", "cats", "now", "2024", "free", "猫", "shipping!", "click", "here"],
}


def write_curated(folder: str) -> str:
    """Write a curated folder of synthetic text in two sources of different vocabularies."""
    made_up = CurationSource(name="made-up", paths=("made-up.warc",))
    stage = manifest.claim(folder, Curation(output=folder, workers=0, sources=(made_up,)), {})
    files = {}
    for source, words in WORDS.items():
        dice = random.Random(source)
        rows = []
        for number in range(40):
            text = " ".join(dice.choice(words) for _ in range(dice.randint(20, 90)))
            url = f"https://{source}.example/{number}"
            identity = hashlib.md5(url.encode()).hexdigest()
            row = {"id": identity, "url": url, "source": source, "language": "", "text": text}
            rows.append(row)
        name = f"kept/{source}.parquet"
        Path(stage.build_path("kept")).mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), stage.build_path(name))
        files[name] = manifest.compute_file_sum(stage.build_path(name))
    stage.finish({"kept": 80}, files)
    return folder


def tokenized(
    base: Path, held_out: float = 0.2, entries: int = ENTRIES, **tokenizer_settings: Any
) -> str:
    """Tokenize into a folder below `base`, and return it."""
    documents = write_curated(str(base / "curated"))
    tokenizer = str(base / "tokenizer")
    output = str(base / "tokens")
    settings = ByteLevelBPE(vocabulary=entries, **tokenizer_settings)
    make_tokenizer(TokenizerTraining(documents=documents, output=tokenizer, tokenizer=settings))
    tokenize(
        Tokenization(
            documents=documents, tokenizer=tokenizer, output=output, workers=0, held_out=held_out
        )
    )
    return output


@pytest.fixture(scope="session")
def make_tokens() -> Callable[..., str]:
    """Return `make_tokens(folder, held_out=0.0)`: other tokens than the usual."""
    return tokenized


@pytest.fixture(scope="session")
def tokens(once: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the usual tokens: about 7,000 of two sources, a fifth of the documents held out."""
    return once("tokens", lambda: tokenized(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def corrupted_tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the usual tokens, by a tokenizer with the special tokens of corruptions."""
    extra = ("<|mask|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "[R]", "[S]", "[X]")
    base = tmp_path_factory.mktemp("corrupted")
    return tokenized(base, entries=ENTRIES + 24, sentinels=17, extra=extra)


@pytest.fixture(scope="session")
def make_run(tokens: str) -> Callable[..., Pretraining]:
    """Return `make_run(output, training={"steps": 5})`: the usual run file with changes."""

    def make(output: Path | str, workers: int = 1, **changes: Any) -> Pretraining:
        parts: dict[str, dict[str, Any]] = {
            "model": {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48},
            "batches": {"sequence_length": 32, "global_batch": 8, "micro_batch": 2},
            # Steep enough that a wrong gradient shows, clipped at some steps and not at others.
            "training": {
                "steps": 12,
                "optimizer": {"kind": "AdamW", "lr": 0.01},
                "schedule": {"kind": "Cosine", "warmup": 2},
                "clip_norm": 0.8,
            },
        }
        merged = {name: part | changes.get(name, {}) for name, part in parts.items()}
        others = {name: part for name, part in changes.items() if name not in parts}
        settings = {"tokens": tokens, "output": str(output), "workers": workers}
        return Pretraining(**settings | merged | others)

    return make


@pytest.fixture(scope="session")
def make_job(make_run: Callable[..., Pretraining]) -> Callable[..., TrainingJob]:
    """Return `make_job(…)`: create a run's folder and return its job."""

    def make(output: Path | str, workers: int = 1, **changes: Any) -> TrainingJob:
        if not storage.is_remote(str(output)):  # where folders need not be created
            Path(output).mkdir(parents=True, exist_ok=True)
        return prepare(make_run(output, workers, **changes))

    return make


class Ranks:
    """Processes that form a group for each task; `rank.py` defines the tasks."""

    def __init__(self, stores: Path) -> None:
        self._stores = stores
        self._processes: list[subprocess.Popen[bytes]] = []
        self._tasks = 0

    def __call__(self, world: int, action: str, **arguments: Any) -> list[Any]:
        """Run `action` on `world` ranks, and return each rank's answer."""
        answers = [
            pickle.load(process.stdout) for process in self.start(world, action, **arguments)
        ]
        for fine, answer in answers:
            assert fine, answer
        return [answer for _, answer in answers]

    def start(self, world: int, action: str, **arguments: Any) -> list[subprocess.Popen[bytes]]:
        """Start `action` on `world` ranks, and return their processes in the order of ranks.

        A process that has ended is started again.
        """
        for number, process in enumerate(self._processes):
            if process.returncode is not None:
                process.stdin.close()
                process.stdout.close()
                self._processes[number] = self._spawn()
        while len(self._processes) < world:
            self._processes.append(self._spawn())
        self._tasks += 1
        store = self._stores / f"task-{self._tasks}"
        for rank, process in enumerate(self._processes[:world]):
            pickle.dump((action, arguments, (rank, world, f"file://{store}")), process.stdin)
            process.stdin.flush()
        return self._processes[:world]

    def end(self) -> None:
        """Kill all remaining processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        self._processes = []

    def _spawn(self) -> Any:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD,
        )


class ForkedRank(ForkedProcess):
    """Rank that is forked with everything imported, with the interface of a `Popen`."""

    def __init__(self, address: ServerAddress) -> None:
        super().__init__(address, "rank:serve", None)
        self.stdin = os.fdopen(os.dup(self._channel.fileno()), "wb")
        self.stdout = os.fdopen(os.dup(self._channel.fileno()), "rb")
        self._channel.close()
        self.returncode: int | None = None

    def kill(self) -> None:
        """Kill the process."""
        if self.returncode is None:
            self.ask_to_end()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code as a `Popen` does, or None while the process lives."""
        if self.returncode is None and select.select([self._control], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        if self.returncode is None:
            self.returncode = int(self._lines.readline())
            self.close()
        return self.returncode


class ForkedRanks(Ranks):
    """Ranks that may die, as they start quickly.

    They share the seed by which Python hashes text, as ranks of one node do; `Ranks` do not.
    """

    def __init__(self, stores: Path, server: ForkServer) -> None:
        super().__init__(stores)
        self._server = server

    def _spawn(self) -> Any:
        return ForkedRank(self._server.get_address())


def start_fork_server() -> ForkServer:
    """Start a single-threaded server that has imported `rank.py` and what a first step imports."""
    path = [str(Path(__file__).parent), *sys.path]
    with mock.patch.dict(os.environ, ONE_THREAD), mock.patch.object(sys, "path", path):
        return ForkServer("rank", "torch._inductor")


@pytest.fixture(scope="session")
def fork_server(once: Callable[..., ForkServer]) -> ForkServer:
    """Return the fork server of ranks that may die."""
    return once("fork server", start_fork_server)


@pytest.fixture(scope="session")
def ranks(once: Callable[..., Ranks], tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Return `ranks(2, "train", job=…, attempt=…)`, for tests that kill no process."""
    return once("ranks", lambda: Ranks(tmp_path_factory.mktemp("stores")), lambda pool: pool.end())


@pytest.fixture
def mortal_ranks(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Yield ranks of this test alone, which may die."""
    pool = ForkedRanks(tmp_path_factory.mktemp("stores"), fork_server)
    yield pool
    pool.end()


@pytest.fixture(scope="module")
def revived_ranks(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Yield ranks of this file alone, which may die.

    After a death, the surviving rank serves again.
    """
    pool = ForkedRanks(tmp_path_factory.mktemp("stores"), fork_server)
    yield pool
    pool.end()


@pytest.fixture
def without_ray(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stages that train use ranks without Ray."""

    def run(job: TrainingJob, workers: int) -> trainer.TrainingResult:
        folder = RunFolder(job.folder)
        attempt = None
        while attempt is None or folder.is_rolled_back(attempt):  # supervisors do the same
            newest, _ = find_newest_valid(folder)
            attempt = folder.take_attempt(newest.step if newest else 0)
            path = newest.path if newest else None
            ranks(workers, "train", job=job, attempt=attempt, resume_from=path)
        last, _ = find_newest_valid(folder)
        assert last is not None
        return trainer.TrainingResult(last, restarts=len(folder.read_attempts()) - 1)

    monkeypatch.setattr(trainer, "run", run)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make this process the only rank of a group, single-threaded as ranks are."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    join_group(0, 1, f"file://{tmp_path_factory.mktemp('stores')}/store", timedelta(seconds=60))
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="session")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of a task of twelve choices between words in the tokens and other words."""
    folder = tmp_path_factory.mktemp("task")
    dice = random.Random(0)
    rows = []
    for number in range(12):
        said = dice.choice(WORDS["books"])
        unsaid = dice.choice(["zyx", "quark", "Ωmega"])
        query = " ".join(dice.choices(WORDS["books"], k=4))
        rows.append({"query": query, "choices": [said, unsaid], "gold": number % 2})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    (folder / "words.toml").write_text(
        f'name = "words"\nrows = "{folder}/rows.jsonl"\nprompt = "{{{{ query }}}}"\n'
        '[scoring]\nkind = "MultipleChoice"\nchoices = "choices"\ngold = "gold"\n'
    )
    return str(folder / "words.toml")
