"""Conversion of a plan into a run file that `trainrig pretrain` accepts."""

import math

from trainrig import manifest, storage
from trainrig.config import to_toml
from trainrig.errors import ConfigError
from trainrig.manifest import Manifest
from trainrig.objectives.objective_interface import find_corruption
from trainrig.parallel.precision import Precision
from trainrig.scaling.laws.objective_names import read
from trainrig.scaling.plan.plan import ScalingPlan, write_plan
from trainrig.scaling.plan.plan_request import PlanRequest
from trainrig.tokens.rows.batch_stages import (
    EPOCHS,
    BatchSettings,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.pretrain import open_batches
from trainrig.train.retention import Checkpoints
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training


def fit_to_tokens(tokens: str, request: PlanRequest, objective: str) -> PlanRequest:
    """Return `request` with the vocabulary of a folder that `trainrig tokenize` wrote.

    The vocabulary is rounded up to a multiple of 64. Raises DataError if `tokens` is no such
    folder, or if its tokenizer lacks what `objective` needs.
    """
    counts = _read(tokens).counts
    encoder = Encoder(manifest.read_file(tokens, "tokenizer.json").decode())
    find_corruption(read(objective), encoder, request.sequence_length)
    entries = -(-int(counts["vocabulary"]) // 64) * 64
    return request.model_copy(update={"vocabulary": entries})


def count_train_tokens(tokens: str) -> int:
    """Return the number of unique training tokens in a folder that `trainrig tokenize` wrote."""
    return int(_read(tokens).counts["train_tokens"])


def _read(tokens: str) -> Manifest:
    return manifest.read_input(tokens, "tokenize")


def build_run_file(
    plan: ScalingPlan, compute: str, tokens: str, output: str, plan_path: str
) -> Pretraining:
    """Build the run file of `plan`, which trains on folder `tokens` and writes to `output`.

    Raises ConfigError if no layout fits, or if the folder has too few tokens for whole windows.
    """
    if not plan.placement.fits:
        raise ConfigError(
            f"no run file: {plan.warnings[-1]} Give more --devices, or a device with more memory"
        )
    recipe = plan.recipe
    placement = plan.placement
    batches = BatchSettings(
        sequence_length=recipe.sequence_length,
        global_batch=recipe.global_batch,
        micro_batch=recipe.micro_batch,
        epochs=_choose_epochs(plan, tokens),
    )
    return Pretraining(
        tokens=tokens,
        output=output,
        plan=plan_path,
        workers=plan.cost.devices,
        model=plan.model,
        objective=read(plan.objective),
        batches=batches,
        training=Training(
            steps=recipe.steps,
            optimizer=recipe.optimizer.model_copy(update={"lr": recipe.rate}),
            parallel=placement.parallel,
            precision=Precision.model_validate({"compute": compute}),
            recompute=placement.recompute,
            deterministic=placement.deterministic,
            virtual_workers=plan.cost.devices,
            checkpoints=Checkpoints(every=plan.saving.every),
        ),
    )


def _choose_epochs(plan: ScalingPlan, tokens: str) -> float:
    """Return the usual limit of epochs, or the number that the plan needs if that is more.

    Each source needs somewhat more than its tokens suggest, because windows leave some of them out.
    """
    uncapped = BatchSettings(
        sequence_length=plan.recipe.sequence_length,
        global_batch=plan.recipe.global_batch,
        micro_batch=plan.recipe.micro_batch,
        epochs=math.inf,
    )
    needed = open_batches(tokens, uncapped).check_epochs(plan.recipe.steps)
    return max(EPOCHS, math.ceil(max(needed.values())))


def write_run(path: str, plan: ScalingPlan, compute: str, tokens: str, output: str | None) -> str:
    """Write the run file to `path` and the plan next to it, and return the path of the plan.

    If `output` is None, the run folder is named like the run file. Raises ConfigError if `path` has
    other contents.
    """
    stem = path.removesuffix(".toml")
    plan_path = f"{stem}.plan.json"
    run = build_run_file(plan, compute, tokens, output or stem, plan_path)
    text = to_toml(run).encode()
    if storage.exists(path) and storage.read(path) != text:
        raise ConfigError(
            f"{path} exists already with other contents; remove it, or choose another path"
        )
    write_plan(plan_path, plan)
    storage.write(path, text)
    return plan_path
