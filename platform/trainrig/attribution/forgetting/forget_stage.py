"""The replay of a pretraining run without some pages, and its certificate.

The new run continues a checkpoint from before the first use of any of the pages, with these pages
masked. It makes the same updates as a run that had them masked from its beginning, so the weights
and the optimizer state are equal byte for byte. The old run is not changed.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from trainrig import __version__, manifest, storage
from trainrig.attribution.forgetting.certificate_signature import sign, verify_signature
from trainrig.attribution.forgetting.forget_plan import FORGOTTEN, ForgetPlan, StartingPoint
from trainrig.attribution.forgetting.forget_prompts import (
    branch_run,
    build_prompt_run,
    check_masked_data,
    check_stored_batches,
    is_reinforcement,
)
from trainrig.attribution.forgetting.run_children import replay_children
from trainrig.attribution.forgetting.tensor_sums import compute_tensor_sum
from trainrig.config import to_toml, with_absolute_paths
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import MANIFEST
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.runs.step_trace import RUN_FILE, open_traced
from trainrig.tokens.batches import IGNORE, MicroBatch
from trainrig.tokens.rows.masked_documents import MaskedDocuments, read_masked_documents
from trainrig.train import checkpoint, pretrain
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.worker_settings import Workers
from trainrig.train.training_job import TrainingJob

MASKED = "masked.json"
FROM_START = "from_start.toml"  # run file of the same run with the pages masked from its beginning
CERTIFICATE = "certificate.json"
SIGNATURE = f"{CERTIFICATE}.sig"


class Certificate(BaseModel):
    """Record of the pages that a run no longer learned from, and of how to check it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    trainrig: str  # version that made the run
    statement: str
    old_run: str  # folder
    old_content: str  # fingerprint of its manifest
    run: str  # folder of the new run
    content: str  # fingerprint of its manifest
    sha256: dict[str, str]  # SHA-256 of the run file and of the list of masked documents
    checkpoint: str  # path of the last checkpoint in the folder `run`
    tensors_sha256: str  # sum of all its tensors, the optimizer state included
    continued_from: dict[str, Any] | None  # None: it was trained from the beginning
    # Initial weights whose training data is unknown; None: no such weights were used.
    unknown_base: str | None
    not_learned: tuple[dict[str, str], ...]  # requested names that the old run did not learn from
    first_update: int  # first update of the old run that learned from a page
    removed: tuple[dict[str, Any], ...]  # documents, with the updates that learned from each
    earlier: int  # documents that the old run had masked already
    children: tuple[dict[str, Any], ...]  # runs that started from the old run, parents first
    how_to_check: tuple[str, ...]  # commands


def take_back(
    plan: ForgetPlan,
    out: str,
    workers: Workers | None = None,
    children: bool = False,
    key: str | None = None,
) -> Certificate:
    """Train the run of `plan` without its pages in the folder `out`; return the certificate.

    The same call continues after a stop. `workers` replaces the number of workers of the run.
    `children`: whether runs that started from it are made again too, in `out` with `-children`.
    `key`: file with the private key that signs the certificate.
    Raises DataError if the shards differ from their sums, or if the new run cannot equal a run with
    masks from its beginning, and OutputTaken if `out` holds something else.
    """
    folder = storage.make_absolute(out.rstrip("/"))
    run = build_run(plan, folder, workers)
    counted: dict[str, int] = {}
    if isinstance(run, ReinforcementLearning):
        job, inputs, counted = branch_run(plan, run)
    else:
        if manifest.read_claim(folder) is None:
            tokens = storage.make_absolute(run.tokens)
            manifest.verify_files(tokens, manifest.read_manifest(tokens))
        job = prepare_replay(plan, run)
        inputs = pretrain.list_inputs(
            run, job, manifest.read_input(run.tokens, "tokenize"), plan.masked
        )
        if plan.start:
            inputs["branch_from"] = plan.start.content
    stage = manifest.claim(folder, run, inputs)
    if not stage.finished:
        storage.write(stage.build_path(MASKED), plan.masked.encode())
        recorded = json.dumps(plan.to_json(), indent=1).encode()
        storage.write(stage.build_path(FORGOTTEN), recorded)
        from_start = run.model_copy(update={"output": f"{folder}-from-start"})
        text = to_toml(with_absolute_paths(from_start))
        storage.write(stage.build_path(FROM_START), text.encode())
        if job.adapter:
            checkpoint.keep_base(job.adapter, folder)
        pretrain.drive(stage, run, job, run.workers, counted)
    check_rollbacks(folder, plan.start)
    new = {}
    if children:
        new = replay_children(plan.children, {plan.run: folder}, f"{folder}-children")
    certificate = _certify(plan, folder, new)
    _write_certificate(folder, certificate, key)
    return certificate


def _write_certificate(folder: str, certificate: Certificate, key: str | None) -> None:
    """Write the certificate and its signature; without a key, no signature of another one stays."""
    data = json.dumps(certificate.model_dump(mode="json"), indent=1).encode()
    path = storage.join(folder, CERTIFICATE)
    signature = storage.join(folder, SIGNATURE)
    if not storage.exists(path) or storage.read(path) != data:
        if storage.exists(signature):
            storage.delete_files([signature])
        storage.write(path, data)
    if key is not None:
        storage.write(signature, sign(data, key))


def build_run(
    plan: ForgetPlan, folder: str, workers: Workers | None = None
) -> Pretraining | ReinforcementLearning:
    """Return the run file of the run without the pages, with its output in `folder`."""
    changed: dict[str, Any] = {
        "output": folder,
        "masked_documents": storage.join(folder, MASKED),
        **({} if workers is None else {"workers": workers}),
    }
    if is_reinforcement(plan.run):
        return build_prompt_run(plan, changed)
    settings = open_traced(plan.run).settings
    return Pretraining.model_validate(dict(settings) | changed | {"continue_from": plan.base})


def prepare_replay(plan: ForgetPlan, run: Pretraining) -> TrainingJob:
    """Return the job of `run`, which masks the documents of `plan` and begins at its checkpoint."""
    job = pretrain.prepare(run, plan.masked)
    start = plan.start.checkpoint if plan.start else None
    return dataclasses.replace(job, branch_from=start)


def check_rollbacks(folder: str, start: StartingPoint | None) -> None:
    """Raise DataError if a loss spike began before the checkpoint `start` of the run in `folder`.

    A run from the beginning would go back to an older checkpoint, which this run does not have.
    """
    if start is None:
        return
    for event in RunFolder(folder).read_events():
        if event["event"] != "spike":
            continue
        if event["back_to"] is None or event["skip"][0] < start.data_step:
            first, past = event["skip"]
            raise DataError(
                f"{folder}: a loss spike asks to leave out batches {first} to {past - 1} and to go "
                f"back before them, but the run started at batch {start.data_step}; train from "
                f"the beginning: trainrig {_name_verb(folder)} {storage.join(folder, FROM_START)}"
            )


def _name_verb(folder: str) -> str:
    return "rl" if is_reinforcement(folder) else "pretrain"


def _certify(plan: ForgetPlan, folder: str, new: Mapping[str, str]) -> Certificate:
    resolved, tensors = compute_tensor_sum(folder)
    made = manifest.read_manifest(folder)
    removed = len(plan.pages)
    start = plan.start
    since = f"update {start.step + 1}" if start else "its first update"
    return Certificate(
        trainrig=__version__,
        statement=(
            f"{folder} repeats the run {plan.run} without {removed} documents. From {since} on, "
            "none of their ids was an input or a target. No update before update "
            f"{plan.first_update} used them. The tokenizer and the choice of all other documents "
            "are the same as in the old run."
            + (
                f" The training data of the initial weights {plan.unknown_base} is unknown."
                if plan.unknown_base
                else ""
            )
        ),
        old_run=plan.run,
        old_content=manifest.read_manifest(plan.run).content,
        run=folder,
        content=made.content,
        sha256={
            name: storage.compute_sha256(storage.join(folder, name)) for name in (RUN_FILE, MASKED)
        },
        checkpoint=resolved.removeprefix(f"{folder}/"),
        tensors_sha256=tensors,
        continued_from=dataclasses.asdict(start) if start else None,
        unknown_base=plan.unknown_base,
        not_learned=tuple(dataclasses.asdict(name) for name in plan.unused),
        first_update=plan.first_update,
        removed=tuple(page.to_json() for page in plan.pages),
        earlier=plan.earlier,
        children=tuple(
            {**dataclasses.asdict(child), "made_again": new.get(child.folder)}
            for child in plan.children
        ),
        how_to_check=(
            f"trainrig forget {folder} --check",
            f"trainrig {_name_verb(folder)} {storage.join(folder, FROM_START)}",
            f"trainrig forget {folder} --check --against {folder}-from-start",
        ),
    )


def check_certificate(
    folder: str, against: str | None = None, key: str | None = None
) -> Iterator[str]:
    """Check the certificate in a run folder; yield one line for each check that holds.

    The sums of the files and tensors are computed again, and so are all batches that held a page.
    `against`: a run with the same pages masked from its beginning, whose tensors must be equal.
    `key`: file with the public key that must have signed the certificate.
    Raises DataError for the first check that does not hold.
    """
    folder = storage.make_absolute(folder.rstrip("/"))
    path = storage.join(folder, CERTIFICATE)
    if not storage.exists(path):
        raise ConfigError(f"{path}: no certificate; name a folder that `trainrig forget` wrote")
    certificate = Certificate.model_validate_json(storage.read(path))
    yield from _check_signature(folder, key)
    for name, expected in certificate.sha256.items():
        file = storage.join(folder, name)
        if not storage.exists(file) or storage.compute_sha256(file) != expected:
            raise DataError(f"{file}: differs from its SHA-256 in {CERTIFICATE}; restore it")
        yield f"{name}: its SHA-256 equals the certificate's"
    made = manifest.read_manifest(folder)
    if made.content != certificate.content:
        raise DataError(f"{storage.join(folder, MANIFEST)}: is of another run than {CERTIFICATE}")
    resolved, tensors = compute_tensor_sum(storage.join(folder, certificate.checkpoint))
    if tensors != certificate.tensors_sha256:
        raise DataError(f"{resolved}: its tensors differ from the certificate's; restore it")
    yield f"{certificate.checkpoint}: all tensors have the certificate's SHA-256"
    masked = read_masked_documents(storage.join(folder, MASKED))
    past = int(checkpoint.read_entries(resolved)["data_step"])
    of_prompts = is_reinforcement(folder)
    if of_prompts:
        check_masked_data(folder, resolved, masked)
    else:
        checkpoint.check_data(resolved, open_traced(folder).batches)
    yield f"{certificate.checkpoint}: records these masks for its data"
    batches, rows = (
        check_stored_batches(folder, masked) if of_prompts else check_batches(folder, masked, past)
    )
    yield (
        f"{len(masked.documents):,} masked documents: {rows:,} rows of {batches:,} batches place "
        "one, and none holds an id or a target of them"
    )
    if against is not None:
        other, found = compute_tensor_sum(against)
        if found != tensors:
            raise DataError(f"{other}: its tensors differ from the tensors of {resolved}")
        yield f"{other}: all tensors are equal, byte for byte"


def _check_signature(folder: str, key: str | None) -> Iterator[str]:
    """Check the signature of a certificate; yield a line if there is one."""
    path = storage.join(folder, CERTIFICATE)
    signature = storage.join(folder, SIGNATURE)
    if storage.exists(signature):
        try:
            signer = verify_signature(storage.read(path), storage.read(signature), key)
        except DataError as error:
            raise DataError(f"{signature}: {error}") from None
        yield f"{CERTIFICATE}: is signed by the key {signer}"
    elif key is not None:
        raise DataError(f"{signature}: missing, so no key signed the certificate")


def check_batches(folder: str, masked: MaskedDocuments, past: int) -> tuple[int, int]:
    """Compute the batches before `past` again that place a masked document.

    Returns the number of these batches, and of their rows that place one. Raises DataError if an id
    or a target of a masked document is in one.
    """
    batches = open_traced(folder).batches
    uses: dict[int, dict[int, set[int]]] = {}  # documents of each sample of each step
    for step, sample, _, number in batches.iterate_uses(masked, past):
        uses.setdefault(step, {}).setdefault(sample, set()).add(number)
    for step, samples in uses.items():
        for micro in batches.at(step):
            for row, sample in enumerate(micro.samples.tolist()):
                hidden = samples.get(sample, set())
                if hidden and not is_hidden(micro, row, hidden, masked.filler):
                    raise DataError(
                        f"{folder}: sample {sample} of batch {step} holds a masked document"
                    )
    return len(uses), sum(map(len, uses.values()))


def is_hidden(micro: MicroBatch, row: int, hidden: set[int], filler: int) -> bool:
    """Return whether no id and no target of a row is of the documents `hidden` of its source."""
    pieces = micro.pieces[micro.pieces[:, 0] == row]
    ends = np.append(pieces[1:, 1], micro.ids.shape[1])
    placed = set()
    for (_, begin, number), end in zip(pieces.tolist(), ends.tolist(), strict=True):
        if number not in hidden:
            continue
        placed.add(number)
        shown = micro.ids[row, begin:end] != filler
        asked = micro.targets[row, max(begin - 1, 0) : end] != IGNORE
        if shown.any() or asked.any():
            return False
    # A document without an id in the row has its first token as the row's last target.
    return placed == hidden or bool(micro.targets[row, -1] == IGNORE)
