"""Fixtures of training and of later stages: tiny tokens, tiny runs, groups of ranks.

tests/conftest.py registers this module as a plug-in. The fixtures import what they need when they
are used, so that a test of a command line does not wait for torch.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainrig import storage

if TYPE_CHECKING:
    from support.ranks.groups import Ranks
    from trainrig.processes.fork_server import ForkServer
    from trainrig.train.elastic.trainer import TrainingResult
    from trainrig.train.run_file.run_files import Pretraining
    from trainrig.train.training_job import TrainingJob


@pytest.fixture(scope="session")
def make_tokens() -> Callable[..., str]:
    """Return `make_tokens(folder, held_out=0.0)`: other tokens than the usual."""
    from support import tiny_runs

    return tiny_runs.tokenized


@pytest.fixture(scope="session")
def tokens(make_tokens: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the usual tokens: about 7,000 of two sources, a fifth of the documents held out."""
    return make_tokens(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def corrupted_tokens(
    make_tokens: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the usual tokens, by a tokenizer with the special tokens of corruptions."""
    from support.tiny_runs import ENTRIES

    extra = ("<|mask|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "[R]", "[S]", "[X]")
    base = tmp_path_factory.mktemp("corrupted")
    return make_tokens(base, entries=ENTRIES + 24, sentinels=17, extra=extra)


@pytest.fixture(scope="session")
def make_run(tokens: str) -> Callable[..., Pretraining]:
    """Return `make_run(output, training={"steps": 5})`: the usual run file with changes."""
    from support import tiny_runs

    def make(output: Path | str, workers: int = 1, **changes: Any) -> Pretraining:
        read = changes.pop("tokens", tokens)
        return tiny_runs.make_run(read, output, workers, **changes)

    return make


@pytest.fixture(scope="session")
def make_job(make_run: Callable[..., Pretraining]) -> Callable[..., TrainingJob]:
    """Return `make_job(…)`: create a run's folder and return its job."""
    from trainrig.train.pretrain import prepare

    def make(output: Path | str, workers: int = 1, **changes: Any) -> TrainingJob:
        if not storage.is_remote(str(output)):  # where folders need not be created
            Path(output).mkdir(parents=True, exist_ok=True)
        return prepare(make_run(output, workers, **changes))

    return make


@pytest.fixture
def skipping_run(
    make_job: Callable[..., TrainingJob],
    make_run: Callable[..., Pretraining],
    ranks: Ranks,
    tmp_path: Path,
) -> str:
    """Train a run of 6 updates that skipped batches 2 and 3, and return its folder."""
    from trainrig.config import to_toml
    from trainrig.train.run.run_folder import RunFolder

    settings = {"steps": 6, "skip_data": ((2, 4),), "checkpoints": {"every": 2, "keep": 9}}
    folder = tmp_path / "run"
    job = make_job(folder, training=settings)
    (folder / "run.toml").write_text(to_toml(make_run(folder, training=settings)))
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    return str(folder)


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """Return the fork server of ranks that may die."""
    from support.ranks.groups import start_fork_server

    return start_fork_server()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Yield `ranks(2, "train", job=…, attempt=…)`, for tests that kill no process."""
    from support.ranks.groups import Ranks

    pool = Ranks(tmp_path_factory.mktemp("stores"))
    yield pool
    pool.end()


@pytest.fixture
def mortal_ranks(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Yield ranks of this test alone, which may die."""
    from support.ranks.groups import ForkedRanks

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
    from support.ranks.groups import ForkedRanks

    pool = ForkedRanks(tmp_path_factory.mktemp("stores"), fork_server)
    yield pool
    pool.end()


@pytest.fixture
def without_ray(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stages that train use ranks without Ray."""
    from trainrig.train.checkpoint import find_newest_valid
    from trainrig.train.elastic import trainer
    from trainrig.train.run.run_folder import RunFolder

    def run(job: TrainingJob, workers: int) -> TrainingResult:
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
    import torch

    from trainrig.parallel.mesh import join_group

    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    join_group(0, 1, f"file://{tmp_path_factory.mktemp('stores')}/store", timedelta(seconds=60))
    yield
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def measure_peak(alone: None) -> Callable[..., Any]:
    """Return `measure_peak(job)`: the allocator's peak bytes in the second step.

    This includes what was allocated before. With `making`, it also returns, first, the peak while
    the step's batch was made.
    """
    from support.peaks import find_peaks

    return find_peaks


@pytest.fixture(scope="session")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of a task of twelve choices between words in the tokens and other words."""
    from support import tiny_runs

    return tiny_runs.write_task(tmp_path_factory.mktemp("task"))


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yield a port that refuses connections, and keep other processes from listening on it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
