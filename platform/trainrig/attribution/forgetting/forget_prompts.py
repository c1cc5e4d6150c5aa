"""The plan for taking prompts back from a run of reinforcement learning, and the run without them.

A prompt is requested by the `url` or `id` of its row. Which batches it is in follows from the seed,
so the updates that learned from it are known without the weights. The new run masks the prompt and
continues a checkpoint from before its first batch.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from trainrig import config, hardware, manifest, storage
from trainrig.attribution.forgetting.forget_plan import (
    ForgetPlan,
    LearnedPage,
    estimate_replay,
    find_start,
    iterate_origins,
    read_started,
)
from trainrig.attribution.forgetting.requested_pages import PageRequest, UnusedName
from trainrig.attribution.forgetting.run_children import list_children
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.data_lineage import find_run_folder
from trainrig.posttrain.model_source import IMPORTED, is_hub_folder
from trainrig.posttrain.prompt_files import PromptSet, read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.rl import reinforcement_stage
from trainrig.rl.masked_prompts import (
    describe_prompt,
    explain_unmaskable,
    iterate_uses,
)
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.rollout_batches import RolloutBatches
from trainrig.runs.step_trace import RUN_FILE
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.rows.masked_documents import MaskedDocument, MaskedDocuments
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches
from trainrig.train.training_job import TrainingJob


def is_reinforcement(folder: str) -> bool:
    """Return whether `folder` is a run of `rl`."""
    file = storage.join(folder, RUN_FILE)
    if not storage.exists(file):
        return False
    return config.parse(config.read_text(file), file).get("stage") == ReinforcementLearning.verb


def open_reinforcement(folder: str) -> ReinforcementLearning:
    """Open the finished run of `rl` in `folder`.

    Raises ConfigError for a run from which no prompt can be taken back.
    """
    run = config.load(ReinforcementLearning, storage.join(folder, RUN_FILE))
    if reason := explain_unmaskable(run):
        raise ConfigError(
            f"{folder}: {reason}, so no replay without a prompt can be exact; train again with "
            "prompt files that lack it"
        )
    if run.training.stop_if is not None:
        raise ConfigError(
            f"{folder}: training.stop_if ends the run by scores, which depend on the prompts, so "
            "its last update is not known in advance; train again with prompt files that lack them"
        )
    if manifest.find_manifest(folder) is None:
        raise ConfigError(
            f"{folder}: the run is not finished; finish it by `trainrig rl "
            f"{storage.join(folder, RUN_FILE)}`, then take prompts back"
        )
    return run


def plan_prompts(
    folder: str,
    request: PageRequest,
    instance: str | None = None,
    search: Iterable[str] = (),
    out: str | None = None,
) -> ForgetPlan:
    """Plan to take the prompts of `request` back from the run of `rl` in `folder`.

    Takes the arguments of `plan_forgetting`. Raises ConfigError for a run whose prompts cannot
    be taken back, and DataError if its prompts, initial weights or metrics are missing.
    """
    if instance is not None:
        hardware.load().find_instance(instance)
    run = open_reinforcement(folder)
    base = find_start_weights(folder, run)
    prompts, filler = _read_prompts(run, base)
    earlier = reinforcement_stage.read_masks(run)
    hidden = {document.number for document in (earlier.documents if earlier else ())}
    asked = [
        document
        for document in map(describe_prompt, prompts.prompts)
        if {document.id, document.url} & (request.names - {""})
    ]
    new = [document for document in asked if document.number not in hidden]
    pages = tuple(_find_learned(folder, run, prompts, new))
    claim = manifest.read_claim(folder)
    assert claim is not None, "a finished run has a claim"
    documents = [*(earlier.documents if earlier else ()), *new]
    masked = MaskedDocuments(
        shards=claim.inputs["prompts"],
        filler=filler,
        documents=tuple(sorted(documents, key=lambda document: document.number)),
    )
    first = min((page.first_data_step for page in pages), default=0)
    start = None
    if pages:
        start = read_started(out, folder, masked) or find_start(
            folder, _open_batches(run, masked), first, run.rollouts.updates
        )
    updates = min((page.updates[0] for page in pages), default=run.training.steps + 1)
    runs = RunFolder(folder)
    there = {step for _, step, _ in checkpoint.list_committed(runs, runs.checkpoints)}
    return ForgetPlan(
        run=folder,
        pages=pages,
        unused=tuple(_explain_unused(request, asked, pages, hidden, run)),
        base=base,
        unknown_base=base,
        masked=masked,
        earlier=len(hidden),
        checkpoints=tuple(sorted(step for step in there if step >= updates)),
        start=start,
        replay=estimate_replay(folder, run.training, start.step if start else 0, instance),
        children=tuple(list_children(folder, search)) if pages else (),
    )


def find_start_weights(folder: str, run: ReinforcementLearning) -> str:
    """Return the checkpoint with the initial weights of a run, or the Hugging Face folder.

    Raises ConfigError if the checkpoint with the recorded fingerprint is gone.
    """
    path = storage.make_absolute(run.checkpoint)
    if is_hub_folder(path):
        return path
    claim = manifest.read_claim(folder)
    recorded = claim.inputs["checkpoint"] if claim else None
    resolved = checkpoint.resolve(path)
    if checkpoint.compute_content_key(resolved) == recorded:
        return resolved
    origin = RunFolder(find_run_folder(resolved))
    for found, _, _ in checkpoint.list_committed(origin, origin.checkpoints):
        if checkpoint.compute_content_key(found) == recorded:
            return found
    raise ConfigError(
        f"{folder}: began with a checkpoint of {origin.path} with the fingerprint "
        f"{str(recorded)[:12]}, and no checkpoint there has it now; restore it"
    )


def _read_prompts(run: ReinforcementLearning, base: str) -> tuple[PromptSet, int]:
    """Return the prompts of a run, and the id that replaces the ids of masked ones."""
    hub = is_hub_folder(base)
    path = checkpoint.resolve(run.output.rstrip("/") + IMPORTED) if hub else base
    files = checkpoint.read_tokenizer_files(path)
    encoder = PromptEncoder(Encoder.of(files))
    columns = tuple(name for part in run.rewards for name in part.columns)
    longest = run.rollouts.prompt_tokens
    found = read_prompt_set(run.prompts, encoder, longest, columns)
    return found, encoder.encoder.end_of_text


def _find_learned(
    folder: str, run: ReinforcementLearning, prompts: PromptSet, new: list[MaskedDocument]
) -> Iterator[LearnedPage]:
    """Yield the prompts of `new` that the run learned from, with their updates."""
    updates = _list_updates(folder, run.training.steps)
    lengths = {prompt.number: len(prompt.ids) for prompt in prompts.prompts}
    uses: dict[int, list[int]] = {}
    for batch, rows in iterate_uses(run, prompts, max(updates) + 1):
        for row in set(rows):
            uses.setdefault(row, []).append(batch)
    count = run.rollouts.updates
    for document in new:
        steps = [
            step
            for batch in uses.get(document.number, ())
            for step in range(batch * count, (batch + 1) * count)
        ]
        learned = sorted(updates[step] for step in steps if step in updates)
        if learned:
            yield LearnedPage(document, lengths[document.number], tuple(learned), min(steps))


def _list_updates(folder: str, last: int) -> dict[int, int]:
    """Return the update of each step of the data, for updates 1 to `last` of a run.

    A replay logs only the updates after its start, so the runs that it came from give the others.
    Updates that no run logged are taken as trained in order.
    """
    data_steps: dict[int, int] = {}
    for place in iterate_origins(folder):
        for line in metrics.read_series(place):
            data_steps.setdefault(int(line["step"]), int(line["train/data_step"]))
    return {data_steps.get(step, step - 1): step for step in range(1, last + 1)}


def _explain_unused(
    request: PageRequest,
    asked: list[MaskedDocument],
    pages: tuple[LearnedPage, ...],
    hidden: set[int],
    run: ReinforcementLearning,
) -> Iterator[UnusedName]:
    learned = {name for page in pages for name in (page.document.id, page.document.url)}
    for name in sorted(request.names - learned):
        own = {document.number for document in asked if name in (document.id, document.url)}
        if own and own <= hidden:
            yield UnusedName(name, "is masked already")
        elif own:
            yield UnusedName(name, "is among the prompts, but no update used it")
        else:
            where = ", ".join(run.prompts.paths)
            yield UnusedName(name, f"no usable prompt of {where} has this url or id")


def _open_batches(run: ReinforcementLearning, masked: MaskedDocuments) -> RolloutBatches:
    job, _, _ = reinforcement_stage.prepare(run, masked)
    maker = job.make_batches()
    assert isinstance(maker, RolloutBatches)
    return maker


def check_masked_data(folder: str, path: str, masked: MaskedDocuments) -> None:
    """Raise ConfigError unless checkpoint `path` of the run in `folder` records these masks."""
    run = config.load(ReinforcementLearning, storage.join(folder, RUN_FILE))
    checkpoint.check_data(path, _open_batches(run, masked))


def build_prompt_run(plan: ForgetPlan, changed: dict[str, Any]) -> ReinforcementLearning:
    """Return the run file of the run without the prompts of `plan`."""
    run = config.load(ReinforcementLearning, storage.join(plan.run, RUN_FILE))
    return ReinforcementLearning.model_validate(dict(run) | changed | {"checkpoint": plan.base})


def branch_run(
    plan: ForgetPlan, run: ReinforcementLearning
) -> tuple[TrainingJob, dict[str, str], dict[str, int]]:
    """Return the job of `run` from the checkpoint of `plan`, and its inputs and counts."""
    job, inputs, counted = reinforcement_stage.prepare(run, plan.masked)
    if plan.start is None:
        return job, inputs, counted
    inputs["branch_from"] = plan.start.content
    return dataclasses.replace(job, branch_from=plan.start.checkpoint), inputs, counted


def check_stored_batches(folder: str, masked: MaskedDocuments) -> tuple[int, int]:
    """Check the stored batches of a run that place a masked prompt.

    Returns the number of these batches, and of their rows that place one. Raises DataError if an id
    or a target of a masked prompt is in one.
    """
    numbers = {document.number for document in masked.documents}
    placed: set[int] = set()
    rows = 0
    for batch in list_stored_batches(RunFolder(folder)):
        for index in range(len(batch.files)):
            micro = batch.read_micro_batch(index)
            for row, _, number in micro.pieces.tolist():
                if number not in numbers:
                    continue
                placed.add(batch.number)
                rows += 1
                ids = micro.ids[row]
                padded = (ids[1:] == ids[-1]).all() or len(ids) == 1
                shown = ids[0] != masked.filler or not padded
                if shown or (micro.targets[row] != IGNORE).any():
                    raise DataError(f"{batch.folder}: micro-batch {index} holds a masked prompt")
    return len(placed), rows
