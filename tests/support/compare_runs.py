"""Comparisons of training runs: losses, samples and weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

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


def read_layer_norms(job: TrainingJob) -> dict[str, float]:
    """Return the norms by layer that the last step recorded."""
    last = metrics.read_series(job.folder)[-1]
    return {name: value for name, value in last.items() if name.endswith("_norm")}


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


def assert_close(
    found: Run,
    expected: Run,
    held_out: float = 1e-5,
    norms: float = 1e-4,
    layers: float | None = None,
    prefix: str = "model.",
) -> None:
    """Assert that two runs differ by rounding alone.

    Args:
        found: The run to check.
        expected: The run that it is compared with.
        held_out: Largest difference of held-out losses.
        norms: Largest relative difference of gradient norms.
        layers: Largest relative difference of the norms by layer in the last step, if compared.
        prefix: Prefix of the names of the tensors whose values are compared.
    """
    job, whole = found
    other, others = expected
    np.testing.assert_allclose(read_losses(job), read_losses(other), rtol=0, atol=1e-5)
    both = (read_losses(run, "train/grad_norm") for run in (job, other))
    np.testing.assert_allclose(*both, rtol=norms)
    np.testing.assert_allclose(read_held_out(job), read_held_out(other), rtol=0, atol=held_out)
    assert read_held_out(job)
    assert read_samples(job) == read_samples(other)
    if layers is not None:
        by_layer = read_layer_norms(job)
        assert by_layer == pytest.approx(read_layer_norms(other), rel=layers) and len(by_layer) > 3
    assert whole.keys() == others.keys()
    names = [name for name in whole if name.startswith(prefix)]
    assert names
    for name in names:
        np.testing.assert_allclose(whole[name], others[name], rtol=0, atol=1e-4, err_msg=name)
