"""Comparisons of training runs: losses, samples and weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.training_job import TrainingJob

Run = tuple[TrainingJob, Mapping[str, Any]]  # a job, and the whole tensors of its last checkpoint


def read_losses(job: TrainingJob, name: str = "train/loss") -> list[float]:
    """Return one figure of each step."""
    return [line[name] for line in metrics.read_series(job.folder)]


def read_step_losses(job: TrainingJob) -> list[tuple[int, float]]:
    """Return the step and the loss of each step."""
    return [(line["step"], line["train/loss"]) for line in metrics.read_series(job.folder)]


def read_held_out(job: TrainingJob) -> list[tuple[float, float, float]]:
    """Return the held-out losses: of all text, of `books` and of `web`."""
    lines = metrics.read_held_out_series(job.folder)
    return [(line["eval/loss"], line["eval/books/loss"], line["eval/web/loss"]) for line in lines]


def read_samples(job: TrainingJob) -> Any:
    """Return the samples that each step was trained on."""
    return read_trained_samples(RunFolder(job.folder))


def assert_same(found: Run, expected: Run) -> None:
    """Assert that two runs are bit-identical."""
    job, whole = found
    other, others = expected
    for name in ("train/loss", "train/grad_norm"):
        assert read_losses(job, name) == read_losses(other, name)
    assert read_held_out(job) == read_held_out(other) != []
    assert read_samples(job) == read_samples(other)
    assert whole.keys() == others.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def assert_close(found: Run, expected: Run, held_out: float = 1e-5) -> None:
    """Assert that two runs differ by rounding alone, in held-out losses by at most `held_out`."""
    job, whole = found
    other, others = expected
    np.testing.assert_allclose(read_losses(job), read_losses(other), rtol=0, atol=1e-5)
    norms = (read_losses(run, "train/grad_norm") for run in (job, other))
    np.testing.assert_allclose(*norms, rtol=1e-4)
    np.testing.assert_allclose(read_held_out(job), read_held_out(other), rtol=0, atol=held_out)
    assert read_held_out(job)
    assert read_samples(job) == read_samples(other)
    weights = [name for name in whole if name.startswith("model.")]
    assert weights
    for name in weights:
        np.testing.assert_allclose(whole[name], others[name], rtol=0, atol=1e-4, err_msg=name)
