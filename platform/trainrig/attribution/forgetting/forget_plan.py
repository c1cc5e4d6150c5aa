"""The plan for taking pages back from a pretraining run: documents, steps, checkpoint and cost.

A run can be continued without some of its pages from any checkpoint before their first use. All of
this is computed from the run file, the shards and the metrics, without reading tokens.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainrig import config, hardware, manifest, storage
from trainrig.attribution.forgetting.requested_pages import (
    Key,
    PageRequest,
    UnusedName,
    explain_copies,
    explain_unused,
    find_documents,
)
from trainrig.attribution.forgetting.run_children import ChildRun, list_children
from trainrig.attribution.learned_steps import list_updates
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.data_lineage import find_run_folder
from trainrig.objectives.objective_interface import Corrupting
from trainrig.runs.run_list import compute_worker_usd
from trainrig.runs.step_trace import RUN_FILE, TracedRun, open_traced
from trainrig.storage.missing_folders import is_missing
from trainrig.tokens.batches import DataHistory
from trainrig.tokens.rows.masked_documents import MaskedDocument, MaskedDocuments
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.train import checkpoint, pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

FORGOTTEN = "forget.json"  # the plan, in the folder of a run without the pages


@dataclass(frozen=True)
class LearnedPage:
    """A document to take back, and the updates that learned from it."""

    document: MaskedDocument
    tokens: int
    updates: tuple[int, ...]  # counted from 1
    first_data_step: int  # first batch that holds a token of it, counted from 0

    def to_json(self) -> dict[str, Any]:
        """Return the page as a JSON object."""
        return {
            **self.document.model_dump(),
            "tokens": self.tokens,
            "updates": list(self.updates),
        }


@dataclass(frozen=True)
class StartingPoint:
    """A checkpoint from before the first use of any page."""

    checkpoint: str  # folder
    step: int
    data_step: int  # first batch that is trained on after it, counted from 0
    content: str  # fingerprint of its files


@dataclass(frozen=True)
class PlannedReplay:
    """The updates to make again, with their estimated cost."""

    first: int  # counted from 1
    last: int
    tokens: int  # targets
    worker_hours: float  # hours that the run took for these updates, times workers
    usd: float | None  # None: no instance was named

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class ForgetPlan:
    """The pages of a request, and how to take them back from a run."""

    run: str  # run folder
    pages: tuple[LearnedPage, ...]  # empty: the run learned from none of them
    unused: tuple[UnusedName, ...]  # requested names that the run did not learn from
    base: str | None  # checkpoint with the initial weights; None: the run had none
    # Initial weights whose training data is unknown; None: no such weights were used.
    unknown_base: str | None
    masked: MaskedDocuments  # all documents to mask, also from earlier requests
    earlier: int  # documents that the run had masked already
    checkpoints: tuple[int, ...]  # steps of existing checkpoints that learned from a page
    start: StartingPoint | None  # None: the replay starts at the first update
    replay: PlannedReplay
    children: tuple[ChildRun, ...]  # parents before their children

    @property
    def first_update(self) -> int:
        """First update that learned from any of the pages, counted from 1."""
        return min(page.updates[0] for page in self.pages)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return {
            "run": self.run,
            "pages": [page.to_json() for page in self.pages],
            "unused": [asdict(name) for name in self.unused],
            "base": self.base,
            "unknown_base": self.unknown_base,
            "masked": len(self.masked.documents),
            "masked_sha256": self.masked.sha256,
            "first_update": self.first_update if self.pages else None,
            "checkpoints": list(self.checkpoints),
            "start": asdict(self.start) if self.start else None,
            "replay": asdict(self.replay) if self.pages else None,
            "children": [asdict(child) for child in self.children],
        }


def plan_forgetting(
    run: str,
    request: PageRequest,
    instance: str | None = None,
    search: Iterable[str] = (),
    out: str | None = None,
) -> ForgetPlan:
    """Plan to take the pages of `request` back from the finished pretraining run in folder `run`.

    `instance`: machine whose price gives the cost. `search`: further folders with runs that started
    from this one. `out`: the folder of the new run; if it was begun, its starting point is kept.
    Raises ConfigError for a run whose pages cannot be taken back, and DataError if its tokens or
    metrics are missing.
    """
    folder = storage.make_absolute(run.rstrip("/"))
    if instance is not None:
        hardware.load().find_instance(instance)
    traced = open_forgettable(folder)
    batches = traced.batches
    settings = traced.settings
    assert isinstance(settings, Pretraining) and isinstance(batches.shards, TokenShards)
    earlier = pretrain.read_masks(settings)
    base = find_base(settings, folder)
    unknown_base = _check_base(settings, folder, base, request)
    found = find_documents(batches.shards, request)
    new = [document for key, document in found.documents.items() if key not in batches.masked]
    wanted = _build_masks(batches.shards, traced.encoder.end_of_text, new)
    pages = _find_pages(traced, wanted, settings.training.steps)
    known = {name for page in pages for name in (page.document.url, page.document.id)}
    copied = explain_copies(request, [page.document for page in pages])
    known |= {name.name for name in copied}
    # Documents of the request that no update used are masked too: further training could use them.
    masked = _build_masks(
        batches.shards, wanted.filler, [*(earlier.documents if earlier else ()), *new]
    )
    held_out = TokenShards.open(storage.join(storage.make_absolute(settings.tokens), HELD_OUT))
    steps = settings.training.steps
    first = min((page.first_data_step for page in pages), default=0)
    start = None
    if pages:
        start = read_started(out, folder, masked) or find_start(
            folder, _open_masked(settings, masked), first
        )
    updates = min((page.updates[0] for page in pages), default=steps + 1)
    runs = RunFolder(folder)
    there = {step for _, step, _ in checkpoint.list_committed(runs, runs.checkpoints)}
    return ForgetPlan(
        run=folder,
        pages=pages,
        unused=(
            *copied,
            *explain_unused(
                request.names - known, found, held_out, batches.masked, settings.tokens
            ),
        ),
        base=base,
        unknown_base=unknown_base,
        masked=masked,
        earlier=len(batches.masked),
        checkpoints=tuple(sorted(step for step in there if step >= updates)),
        start=start,
        replay=estimate_replay(folder, settings.training, start.step if start else 0, instance),
        children=tuple(list_children(folder, search)) if pages else (),
    )


def list_token_inputs(run: str) -> list[str]:
    """Return the fingerprints of the inputs that the tokens of a run were made of."""
    settings = open_forgettable(storage.make_absolute(run.rstrip("/"))).settings
    assert isinstance(settings, Pretraining)
    return list(manifest.read_input(settings.tokens, "tokenize").inputs.values())


def open_forgettable(folder: str) -> TracedRun:
    """Open the finished pretraining run in `folder`; raise ConfigError if it is no such run."""
    if folder.endswith(".toml"):
        raise ConfigError(f"{folder}: is a run file; name the folder of a finished run")
    if is_missing(folder):
        raise ConfigError(f"{folder}: no such folder; name the folder of a finished run")
    file = storage.join(folder, RUN_FILE)
    if storage.exists(file) and config.parse(config.read_text(file), file).get("stage") == "rl":
        raise ConfigError(
            f"{folder}: is a run of rl, whose prompts are not searched for pages; take the page "
            "out of its prompt files and train it again"
        )
    traced = open_traced(folder)
    settings = traced.settings
    if not isinstance(settings, Pretraining):
        raise ConfigError(
            f"{folder}: is a run of `{settings.verb}`; pages can be taken back from runs of "
            "`pretrain` and prompts from runs of `rl`, and the runs of `posttrain` that started "
            "from a run of `pretrain` are made again"
        )
    if isinstance(settings.objective, Corrupting):
        raise ConfigError(
            f"{folder}: objective {settings.objective.kind} changes the rows, so documents cannot "
            'be masked; only runs with objective.kind = "CausalLM" can forget'
        )
    if settings.training.stop_if is not None:
        raise ConfigError(
            f"{folder}: training.stop_if ends the run by scores, which depend on the pages, so its "
            "last update is not known in advance; pages can only be taken back from runs without it"
        )
    if manifest.find_manifest(folder) is None:
        raise ConfigError(
            f"{folder}: the run is not finished; finish it by `trainrig pretrain "
            f"{storage.join(folder, RUN_FILE)}`, then take pages back"
        )
    return traced


def _check_base(
    settings: Pretraining, folder: str, base: str | None, request: PageRequest
) -> str | None:
    """Return the oldest initial weights of a run if their training data is unknown, or None.

    `base`: the checkpoint with the run's initial weights. Raises ConfigError if a run that the
    weights came from learned from a page of `request`.
    """
    while base is not None:
        try:
            resolved = storage.make_absolute(checkpoint.resolve(base))
            last = int(checkpoint.read_entries(resolved).get("step", 0))
            origin = find_run_folder(resolved)
            traced = open_traced(origin)
        except (ConfigError, DataError):
            return base
        parent = traced.settings
        if not isinstance(parent, Pretraining) or not last:
            return base
        shards = traced.batches.shards
        assert isinstance(shards, TokenShards)
        found = find_documents(shards, request).documents
        new = [document for key, document in found.items() if key not in traced.batches.masked]
        pages = _find_pages(traced, _build_masks(shards, traced.encoder.end_of_text, new), last)
        if pages:
            document = pages[0].document
            raise ConfigError(
                f"{folder}: its initial weights, {base}, learned from "
                f"{document.url or document.id} too; take it back from that run first, then train "
                "again with `continue_from` set to the new run"
            )
        try:
            base = find_base(parent, origin)
        except ConfigError:
            # A replay can do without these weights. The pages behind them are unknown.
            return parent.continue_from
    return None


def find_base(settings: Pretraining, folder: str) -> str | None:
    """Return the checkpoint with the initial weights of a run, or None if it had none.

    It is `continue_from`, unless that run was trained further since: then it is the checkpoint of
    that run whose files have the fingerprint that this run recorded. Raises ConfigError if no
    checkpoint has it.
    """
    base = settings.continue_from
    claim = manifest.read_claim(folder)
    recorded = claim.inputs.get("continue_from") if claim else None
    if base is None or recorded is None:
        return base
    try:
        resolved = storage.make_absolute(checkpoint.resolve(base))
    except DataError:
        return base
    if checkpoint.compute_content_key(resolved) == recorded:
        return base
    origin = RunFolder(find_run_folder(resolved))
    for path, _, _ in checkpoint.list_committed(origin, origin.checkpoints):
        if checkpoint.compute_content_key(path) == recorded:
            return path
    raise ConfigError(
        f"{folder}: began with a checkpoint of {origin.path} with the fingerprint {recorded[:12]}, "
        "and no checkpoint there has it now; restore it"
    )


def _build_masks(
    shards: TokenShards, filler: int, documents: Iterable[MaskedDocument]
) -> MaskedDocuments:
    return MaskedDocuments(
        shards=shards.fingerprint,
        filler=filler,
        documents=tuple(sorted(documents, key=lambda d: (d.source, d.number))),
    )


def _find_pages(traced: TracedRun, wanted: MaskedDocuments, last: int) -> tuple[LearnedPage, ...]:
    """Return those documents of `wanted` that updates 1 to `last` of the run learned from."""
    shards = traced.batches.shards
    updates = list_updates(traced, last)
    read: dict[Key, list[int]] = {}
    for data_step, _, source, number in traced.batches.iterate_uses(wanted, max(updates) + 1):
        read.setdefault((source, number), []).append(data_step)
    found = []
    for document in wanted.documents:
        data_steps = read.get((document.source, document.number), [])
        learned = sorted({updates[step] for step in data_steps if step in updates})
        if learned:
            length = shards.document(document.source, document.number).length
            page = LearnedPage(document, length, tuple(learned), min(data_steps))
            found.append(page)
    return tuple(found)


def read_started(out: str | None, folder: str, masked: MaskedDocuments) -> StartingPoint | None:
    """Return the starting point that an earlier call recorded in `out`, for the same request."""
    path = storage.join(out, FORGOTTEN) if out else ""
    if not out or not storage.exists(path):
        return None
    recorded = json.loads(storage.read(path))
    same = (recorded["run"], recorded["masked_sha256"]) == (folder, masked.sha256)
    if not same or recorded["start"] is None:
        return None
    return StartingPoint(**recorded["start"])


def find_start(
    folder: str, batches: DataHistory, first: int, updates: int = 1
) -> StartingPoint | None:
    """Return the newest whole checkpoint from before the batch of data step `first`, or None.

    A run that already forgot other pages shares the checkpoints of the run that it came from. If a
    run rolled back after a loss spike, only checkpoints from before the data that it then left out
    are considered: a run without the pages has to decide about that data by itself.

    Args:
        folder: the run.
        batches: the batches without the pages. A checkpoint that learned from a page of an earlier
            request does not fit them.
        first: the first data step with a page.
        updates: updates of a batch. A checkpoint between them needs a batch of the old run.
    """
    for place in iterate_origins(folder):
        run_folder = RunFolder(place)
        left_out = [attempt.skip[0] for attempt in run_folder.read_attempts() if attempt.skip]
        latest = min([first, *left_out])
        for path, step, _ in checkpoint.list_committed(run_folder, run_folder.checkpoints):
            if checkpoint.find_damage(path) is not None:
                continue
            data_step = int(checkpoint.read_entries(path)["data_step"])
            if data_step > latest or data_step % updates:
                continue
            try:
                checkpoint.check_data(path, batches)
            except ConfigError:
                continue
            return StartingPoint(path, step, data_step, checkpoint.compute_content_key(path))
    return None


def _open_masked(settings: Pretraining, masked: MaskedDocuments) -> PretrainBatches:
    tokens = storage.make_absolute(settings.tokens)
    return pretrain.open_batches(tokens, settings.batches, settings.cache, None, masked)


def iterate_origins(folder: str) -> Iterator[str]:
    """Yield the run folder, then the run that it is a replay of, and so on."""
    seen = set[str]()
    while folder not in seen:
        seen.add(folder)
        yield folder
        path = storage.join(folder, FORGOTTEN)
        if not storage.exists(path):
            return
        folder = str(json.loads(storage.read(path))["run"])


def estimate_replay(
    folder: str, training: Training, start: int, instance: str | None
) -> PlannedReplay:
    """Estimate the updates after `start` from the updates that the run and its origins logged."""
    lines: dict[int, dict[str, Any]] = {}
    for place in iterate_origins(folder):
        for line in metrics.read_series(place):
            lines.setdefault(int(line["step"]), line)
    if not lines:
        raise DataError(f"{folder}/{metrics.METRICS}: missing, so the cost cannot be estimated")
    steps = training.steps
    again = [line for step, line in lines.items() if step > start]
    seconds = sum(metrics.wall_seconds(line) * line["cluster/workers"] for line in again)
    hours = seconds / 3600 * (steps - start) / max(1, len(again))
    before = lines.get(start, {"train/tokens": 0})["train/tokens"]
    usd = None
    if instance is not None:
        usd = hours * compute_worker_usd(instance, training.model_dump(mode="json"))
    return PlannedReplay(
        first=start + 1,
        last=steps,
        tokens=max(line["train/tokens"] for line in lines.values()) - before,
        worker_hours=hours,
        usd=usd,
    )
