"""Pretraining runs that are trained to their end without Ray, for tests of pages taken back."""

from pathlib import Path
from typing import Any

from trainrig import manifest
from trainrig.config import to_toml, with_absolute_paths
from trainrig.tokens.rows.masked_documents import MaskedDocuments
from trainrig.train import pretrain
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.elastic.supervise import TrainingResult
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_start import claim_run
from trainrig.train.training_job import TrainingJob


def finish_run(run: Pretraining, ranks: Any) -> None:
    """Train `run` by one rank, as `pretrain` would, but without Ray."""
    job = pretrain.prepare(run)
    tokens = manifest.read_input(run.tokens, "tokenize")
    inputs = pretrain.list_inputs(run, job, tokens, pretrain.read_masks(run))
    stage = claim_run(job.folder, run, run.training, inputs)
    Path(job.folder, "run.toml").write_text(to_toml(with_absolute_paths(run)))
    train(ranks, 1, job)
    newest, _ = find_newest_valid(RunFolder(job.folder))
    assert newest is not None
    pretrain.finish(stage, job, TrainingResult(newest, 0))


def train(ranks: Any, world: int, job: TrainingJob) -> None:
    """Train `job` to its end by `world` ranks, from its newest checkpoint."""
    folder = RunFolder(job.folder)
    newest, _ = find_newest_valid(folder)
    step, path = (newest.step, newest.path) if newest else (0, None)
    ranks(world, "train", job=job, attempt=folder.take_attempt(step), resume_from=path)


def write_masks(masked: MaskedDocuments, path: Path) -> str:
    """Write a list of masked documents, and return its path."""
    path.write_bytes(masked.encode())
    return str(path)
