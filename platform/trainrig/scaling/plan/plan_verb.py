"""Implementation of `trainrig plan` by a law: the plan, and a run file for `trainrig pretrain`."""

import math

from trainrig import hardware, manifest, storage
from trainrig.config import to_toml
from trainrig.errors import ConfigError
from trainrig.objectives.objective_interface import find_corruption
from trainrig.parallel.precision import Precision
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_formats import parse_objective
from trainrig.scaling.laws.law_forms import Kaplan
from trainrig.scaling.laws.published_laws import find_law
from trainrig.scaling.plan import plan_schema, plan_text
from trainrig.scaling.plan.plan_run_file import PlanFile
from trainrig.scaling.plan.plan_schema import PlanRequest, ScalingPlan, write_plan
from trainrig.scaling.plan.planner import make_plan
from trainrig.storage.writable import check_file
from trainrig.tokens.rows.batch_stages import EPOCHS, BatchSettings
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
    counts = manifest.read_input(tokens, "tokenize").counts
    encoder = Encoder(manifest.read_file(tokens, "tokenizer.json").decode())
    find_corruption(parse_objective(objective), encoder, request.sequence_length)
    entries = -(-int(counts["vocabulary"]) // 64) * 64
    return request.model_copy(update={"vocabulary": entries})


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
        epochs=math.inf,
    )
    # Each source needs somewhat more epochs than its tokens suggest, because windows leave some of
    # them out.
    needed = open_batches(tokens, batches).check_epochs(recipe.steps)
    epochs = float(max(EPOCHS, math.ceil(max(needed.values()))))
    return Pretraining(
        tokens=tokens,
        output=output,
        plan=plan_path,
        workers=plan.cost.devices,
        model=plan.model,
        objective=parse_objective(plan.objective),
        batches=batches.model_copy(update={"epochs": epochs}),
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


def write_run(path: str, plan: ScalingPlan, compute: str, tokens: str, output: str | None) -> str:
    """Write the run file to `path` and the plan next to it, and return the path of the plan.

    If `output` is None, the run folder is named like the run file. Raises ConfigError if `path` has
    other contents.
    """
    stem = path.removesuffix(".toml")
    plan_path = f"{stem}.plan.json"
    run = build_run_file(plan, compute, tokens, output or stem, plan_path)
    check_run_file(path, run)
    write_plan(plan_path, plan)
    storage.write(path, to_toml(run).encode())
    return plan_path


def check_run_file(path: str, run: Pretraining) -> None:
    """Raise ConfigError if `path` has other contents than the run file of `run`."""
    if storage.exists(path) and storage.read(path) != to_toml(run).encode():
        raise ConfigError(
            f"{path} exists already with other contents; remove it, or choose another path"
        )


def plan_by_law(request: PlanFile, table: str | None) -> tuple[ScalingPlan, list[str]]:
    """Return the plan that `request` asks for, and the lines that describe it.

    `table` is the path of a table of hardware, or None for the built-in one. With `request.out` the
    run file, the plan and its page are written. Raises InputError before anything is written.
    """
    if request.out is not None:
        check_file(request.out)
    law = find_law(str(request.law))
    found = _make_plan(law, request, table)
    lines = list(plan_text.describe_plan(found))
    if request.out and request.tokens_folder:
        # Imported here because plotting is slow to import, and a refused plan needs none.
        from trainrig.scaling.plan.plan_page import write_plan_page

        plan_path = write_run(
            request.out, found, request.compute, request.tokens_folder, request.output
        )
        lines.append(
            f"run file: {request.out}; start it with `trainrig pretrain`. Plan: {plan_path}"
        )
        page = f"{plan_path.removesuffix('.json')}.html"
        lines.append(f"page of the plan: {write_plan_page(page, found, law, request.out)}")
    return found, lines


def _make_plan(law: Law, request: PlanFile, table: str | None) -> ScalingPlan:
    """Return the plan, with the vocabulary and the number of tokens of the folder to train on.

    Without a run file to write, there is no such folder.
    """
    offers = hardware.load(table)
    if request.out is None:
        return make_plan(law, request, offers)
    if request.tokens_folder is None:
        raise ConfigError(
            "plan: --out needs the token shards to train on; add --set tokens_folder=FOLDER, a "
            "folder that `trainrig tokenize` wrote"
        )
    asked = fit_to_tokens(request.tokens_folder, request, law.objective)
    found = make_plan(law, asked, offers)
    counts = manifest.read_input(request.tokens_folder, "tokenize").counts
    available = int(counts["train_tokens"])  # unique training tokens
    if asked.tokens_available is not None or found.size.tokens <= available:
        return found
    if isinstance(law.form, Kaplan):
        repeats = plan_schema.find_repeat_warnings(found.size.tokens, available)
        return found.model_copy(update={"warnings": (*found.warnings, repeats)})
    limited = asked.model_copy(update={"tokens_available": float(available)})
    return make_plan(law, limited, offers)
