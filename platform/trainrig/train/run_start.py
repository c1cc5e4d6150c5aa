"""The start of a training run: changed run files, weights of an earlier run, and free disk space.

A run that has already started may be claimed with a changed run file. `training.steps` may
change if every step made so far had the same learning rate under both values.
`batches.micro_batch` may change if the loss is a mean over tokens, independent of the micro-
batch that holds them; the gradients are then added in another order, so the weights are not bit-
identical. Continued pretraining starts from another run's weights, with a new schedule and new
data.
"""

import logging
import math
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import manifest, storage
from trainrig.config import RunFile
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.manifest import CLAIM, MANIFEST, Claim, Stage, describe_table_difference
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.optim.named_groups import count_state_bytes
from trainrig.processes import lease
from trainrig.report.number_formats import format_bytes, format_short
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import TrainingJob

log = logging.getLogger(__name__)
STEPS = ("training", "steps")
MICRO_BATCH = ("batches", "micro_batch")


def claim_run(
    folder: str,
    run: RunFile,
    training: Training,
    inputs: Mapping[str, str],
    micro_batch_may_change: bool = False,
) -> Stage:
    """Claim the run folder for `run`, as `manifest.claim` does.

    A run that has started and is not finished may be claimed with another number of steps or
    another micro-batch size where the module's rules allow it. Raises OutputTaken, with the reason,
    where they do not, or where a live run holds the folder. `inputs` maps each input's name to the
    fingerprint of its content.
    """
    there = manifest.read_claim(folder)
    wanted = manifest.build_claim(run, inputs)
    if there and there.fingerprint != wanted.fingerprint and not lease.is_held(folder):
        changed = [key for key in (STEPS, MICRO_BATCH) if _get(there, key) != _get(wanted, key)]
        same = _with_values_of(there, wanted, changed)
        if changed and (same.config, same.inputs) == (there.config, there.inputs):
            _check_changes(folder, there, training, changed, micro_batch_may_change)
            kept = wanted.model_copy(update={"environment": there.environment})
            data = kept.model_dump_json(indent=1).encode()
            with lease.hold_lease(folder):
                storage.write(storage.join(folder, CLAIM), data)
            for key in changed:
                _announce(folder, key, there, wanted)
    return manifest.claim(folder, run, inputs)


def check_claim_stands(stage: Stage) -> None:
    """Raise OutputTaken if another driver has changed the claim since `stage` was claimed.

    The caller holds the lease of the folder, so the claim cannot change after this check.
    """
    there = manifest.read_claim(stage.folder)
    if there is None or there.fingerprint != stage.claim.fingerprint:
        raise OutputTaken(
            f"{stage.folder}: another driver has just started this run with other values of "
            "training.steps or batches.micro_batch; wait for it, or stop it, then start again"
        )


def _get(claim: Claim, key: tuple[str, str]) -> object:
    return claim.config.get(key[0], {}).get(key[1])


def _with_values_of(there: Claim, wanted: Claim, keys: list[tuple[str, str]]) -> Claim:
    """Return `wanted` with the values of `keys` taken from `there`."""
    config = dict(wanted.config)
    for table, name in keys:
        config[table] = {**config[table], name: there.config[table][name]}
    return wanted.model_copy(update={"config": config})


def _check_changes(
    folder: str,
    there: Claim,
    training: Training,
    changed: list[tuple[str, str]],
    micro_batch_may_change: bool,
) -> None:
    """Raise OutputTaken if the steps made so far would differ under the `changed` keys."""
    if storage.exists(storage.join(folder, MANIFEST)):
        if STEPS in changed:
            raise OutputTaken(
                f"{folder}: the run is finished with training.steps = {_get(there, STEPS)}, not "
                f"{training.steps}; to train further, start another run with `continue_from` or "
                "`checkpoint` set to this one"
            )
        return
    newest, _ = find_newest_valid(RunFolder(folder), thorough=False)
    made = newest.step if newest else 0
    if STEPS in changed:
        _check_steps(folder, int(str(_get(there, STEPS))), training, made)
    if MICRO_BATCH in changed and made and not micro_batch_may_change:
        raise OutputTaken(
            f"{folder}: the run started with batches.micro_batch = {_get(there, MICRO_BATCH)}. "
            "With its "
            "objective or model, the loss depends on which rows share a micro-batch, so the steps "
            "made so far would differ; set it back, or choose another `output`"
        )


def _check_steps(folder: str, before: int, training: Training, made: int) -> None:
    begun = f"{folder}: the run started with training.steps = {before}, not {training.steps}"
    if training.steps < made:
        raise OutputTaken(
            f"{begun}, and step {made} is saved; set {made} or more, or choose another `output`"
        )
    schedule = training.schedule
    for step in range(made):
        then, now = (schedule.multiplier(step, steps) for steps in (before, training.steps))
        if then != now:
            raise OutputTaken(
                f"{begun}. In schedule {schedule.kind}, the rate of step {step + 1}, already made, "
                f"was {then:.4g} of the peak and would have been {now:.4g}; set it back, or choose "
                "another `output`"
            )


def _announce(folder: str, key: tuple[str, str], there: Claim, wanted: Claim) -> None:
    then = "the steps made so far stay the same"
    if key == MICRO_BATCH:
        then = "gradients are added in another order from now on, so results are not bit-identical"
    log.warning(
        "%s: %s was %s and is %s; %s",
        folder,
        ".".join(key),
        _get(there, key),
        _get(wanted, key),
        then,
    )


# Share of the earlier run's peak learning rate above which more of the old data is forgotten than
# necessary. A rule of thumb; 10% to 30% is a good start.
HIGH_RATE = 0.3
RUN_OF_CHECKPOINT = re.compile(r"(.*)/checkpoints/step_\d+/attempt-\d+")


@dataclass(frozen=True)
class InitialWeights:
    """Checkpoint whose weights a run starts with."""

    path: str
    model: DecoderConfig


def find_initial_weights(
    path: str, tokens: str, encoder: Encoder, model: DecoderConfig | None
) -> InitialWeights:
    """Find the newest complete checkpoint at `path`, a run folder or one of its checkpoints.

    Further prediction heads of the checkpoint's model are ignored. Raises ConfigError if its model
    differs from `model` (None accepts any), and DataError if `tokens`, encoded with `encoder`, were
    made by another tokenizer than the checkpoint's.
    """
    found = checkpoint.resolve(storage.make_absolute(path))
    there, tokenizer = checkpoint.describe(found)
    if Encoder(tokenizer).fingerprint != encoder.fingerprint:
        raise DataError(
            f"{tokens}: the tokenizer differs from the tokenizer of continue_from; tokenize "
            f"the documents with {found}/tokenizer.json"
        )
    if model is not None:
        settled = model.for_tokenizer(there.shape.vocabulary).without_further_heads
        differing = describe_table_difference(
            there.model_dump(mode="json"), settled.model_dump(mode="json")
        )
        if differing:
            raise ConfigError(
                f"continue_from: {found} has another model ({differing}); leave out [model], and "
                "it is taken from there. Longer sequences are a stage of [[context]] from step 0"
            )
    return InitialWeights(found, there)


def warn_of_high_rate(path: str, peak: float) -> None:
    """Log a warning if the rate `peak` is over 30% of the peak rate of the checkpoint's run."""
    before = _read_peak_rate(path)
    if before is not None and peak > HIGH_RATE * before:
        log.warning(
            "training.optimizer.lr is %g, %.0f%% of the earlier run's %g: the model may "
            "forget; %g to %g (10%% to 30%%) is a good start",
            peak,
            100 * peak / before,
            before,
            0.1 * before,
            HIGH_RATE * before,
        )


def _read_peak_rate(path: str) -> float | None:
    """Return the peak rate of the run that made the checkpoint at `path`; None if unknown."""
    run = RUN_OF_CHECKPOINT.fullmatch(path)
    file = storage.join(run[1], "run.toml") if run else ""
    if not run or not storage.exists(file):
        return None
    written: Any = tomllib.loads(storage.read(file).decode())
    rate = written.get("training", {}).get("optimizer", {}).get("lr")
    return float(rate) if rate is not None else None


WEIGHT = 4  # bytes per weight in a checkpoint: float32


def check_disk_space(job: TrainingJob) -> None:
    """Raise ConfigError if the run folder's disk has no space for one checkpoint.

    Log a warning if one checkpoint fits, but not as many as the run keeps. A run folder in a bucket
    is not checked.
    """
    if storage.is_remote(job.folder):
        return
    shapes = _list_saved_shapes(job)
    training = job.training
    parameters = sum(map(math.prod, shapes.values()))
    needed = WEIGHT * parameters + count_state_bytes(shapes, training.optimizer, training.groups)
    for other in job.trained.values():
        other_shapes = parameter_shapes(other.model)
        count = sum(map(math.prod, other_shapes.values()))
        parameters += count
        needed += WEIGHT * count + count_state_bytes(other_shapes, other.optimizer)
    free = _measure_free_bytes(job.folder)
    # The oldest checkpoint is removed only once the newest is complete.
    kept = job.training.checkpoints.keep + 1
    what = (
        f"{job.folder}: {format_bytes(free)} free; a checkpoint of {format_short(parameters)} "
        f"parameters takes {format_bytes(needed)} ({needed / parameters:.3g} bytes each)"
    )
    if needed > free:
        raise ConfigError(f"{what}; free some, or choose another `output`")
    if kept * needed > free + sum(storage.list_sizes(f"{job.folder}/checkpoints").values()):
        log.warning("%s, and up to %d exist at a time: the disk may become full", what, kept)


def _list_saved_shapes(job: TrainingJob) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the saved parameters by name: the model's, or the adapter's alone."""
    if job.adapter is None:
        return parameter_shapes(job.model)
    # Imported here, as it loads torch, which takes seconds.
    from trainrig.models.lora import list_adapter_shapes

    found = list_adapter_shapes(job.model, job.adapter.lora)
    return {name: tuple(shape) for name, shape in found.items()}


def _measure_free_bytes(folder: str) -> int:
    """Return the free bytes of the disk that holds `folder`, which need not exist yet."""
    path = Path(folder)
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
