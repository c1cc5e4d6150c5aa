"""Checks which run-file changes are safe for a training run that has already started.

`training.steps` may change if every step made so far had the same learning rate under both values.
`batches.micro_batch` may change if the loss is a mean over tokens, independent of the micro-batch
that holds them. The gradients are then added in another order, so the weights are not
bit-identical.
"""

import logging
from collections.abc import Mapping

from trainrig import manifest, storage
from trainrig.config import RunFile
from trainrig.errors import OutputTaken
from trainrig.manifest import CLAIM, MANIFEST, Claim, Stage
from trainrig.processes import lease
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training import Training

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
