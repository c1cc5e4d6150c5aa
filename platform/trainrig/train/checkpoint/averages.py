"""Averaged weights written as checkpoints, which can be evaluated, exported and fine-tuned."""

import torch
from torch import Tensor

from trainrig.errors import ConfigError, DataError
from trainrig.models.encoder import build_model
from trainrig.train.checkpoint.found import describe, read_tokenizer_files, resolve
from trainrig.train.checkpoint.manifest import find_damage, list_committed
from trainrig.train.checkpoint.model import open_model, write_model
from trainrig.train.checkpoint.reader import read_tensors
from trainrig.train.run.run_folder import RunFolder


def write_mean_of_last(run: str, count: int, out: str) -> tuple[str, list[int]]:
    """Write the mean of the weights of the `count` newest valid checkpoints of `run`.

    It becomes step 0 of the new run folder `out`. Returns the path of that checkpoint, and the
    steps that were averaged, ascending. The sums are in float64, in the order of steps, so the
    result is bit-identical on any machine. Raises DataError if the run has fewer checkpoints.
    """
    folder = RunFolder(run)
    paths: dict[int, str] = {}
    for path, step, _ in list_committed(folder, folder.checkpoints):
        if len(paths) < count and step not in paths and not find_damage(path, thorough=False):
            paths[step] = path
    if len(paths) < count:
        raise DataError(
            f"{run}: only {len(paths)} valid checkpoints, so the last {count} cannot be "
            "averaged; use "
            "a smaller --last, or train with a larger training.checkpoints.keep"
        )
    total: dict[str, Tensor] = {}
    for step in sorted(paths):
        for name, value in open_model(paths[step]).weights.items():
            total[name] = total[name] + value.double() if name in total else value.double()
    mean = {name: (value / count).float() for name, value in total.items()}
    return _write(paths[max(paths)], mean, out), sorted(paths)


def write_average(run: str, horizon: int, out: str) -> str:
    """Write the average over `horizon` updates, stored in the newest checkpoint of `run`.

    It becomes step 0 of the new run folder `out`; returns the path of that checkpoint. Raises
    ConfigError if the checkpoint has no such average.
    """
    path = resolve(run)
    config, _ = describe(path)
    with torch.device("meta"):
        shapes = {
            name: parameter.shape for name, parameter in build_model(config).named_parameters()
        }
    held = {f"average.{horizon}.{name}": torch.empty(shape) for name, shape in shapes.items()}
    try:
        read_tensors(path, held)
    except ConfigError:
        raise ConfigError(
            f"{path}: has no average over {horizon} updates; train with "
            f"training.averaging.horizons = [{horizon}], or average the last checkpoints (--last)"
        ) from None
    prefix = f"average.{horizon}."
    return _write(path, {name.removeprefix(prefix): tensor for name, tensor in held.items()}, out)


def _write(like: str, weights: dict[str, Tensor], out: str) -> str:
    config, tokenizer = describe(like)
    return write_model(out, config, tokenizer, weights, read_tokenizer_files(like).beside)
