"""What a step was made of: its sequences, their documents, URLs and text.

`trainrig trace` computes the batch of the step again, from the run file and the shards, and shows
where each of its ids is from. Asked of a run folder it also compares the samples with those that
the workers logged when they trained on them: evidence beside arithmetic.

Steps count from 1, as in metrics and logs: step N is the N-th update.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.text import Text

from trainrig import config, manifest, storage
from trainrig.config import did_you_mean
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.batches import IGNORE, MicroBatch
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.mixing.pretraining import PretrainBatches
from trainrig.tokens.row_view import RowPiece, padding, row_text
from trainrig.train import pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.sample_log import trained_samples
from trainrig.train.run_file import Pretraining

RUN_FILE = "run.toml"


@dataclass(frozen=True)
class TracedDocument:
    """A piece of a document in a sequence."""

    place: int  # of its first id in the sequence
    tokens: int  # ids of it among the sequence's T
    id: str
    url: str
    corpus_file: str
    corpus_row: int  # of the document in that file


@dataclass(frozen=True)
class TracedSequence:
    """One row of one micro-batch."""

    sample: int
    micro_batch: int
    row: int
    source: str
    epoch: int  # of the source, from 0
    targets: int  # ids that are trained on
    documents: tuple[TracedDocument, ...]
    ids: tuple[int, ...]
    target_ids: tuple[int, ...]


Log = Literal["agrees", "differs", "none", "not asked"]
"""What the workers' own logs say of the samples computed here; "none": no worker logged the step;
"not asked": a run file was traced, and no run folder."""


@dataclass(frozen=True)
class TracedStep:
    """All sequences of one step's global batch."""

    step: int
    loss: float | None  # nats per target; None: not trained yet, or not from a run folder
    log: Log
    sequences: tuple[TracedSequence, ...]
    encoder: Encoder

    @property
    def verdict(self) -> str:
        """What is known of the step beside its sequences, in a line."""
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        evidence = {
            "agrees": "the workers' logs name the same samples",
            "differs": "THE WORKERS' LOGS NAME OTHER SAMPLES: these are not what it was trained on",
            "none": "no worker has logged it",
            "not asked": "planned; name the run folder to compare with what workers logged",
        }[self.log]
        return f"step {self.step}: {len(self.sequences)} sequences{loss}; {evidence}"

    def as_json(self) -> dict[str, Any]:
        """With the decoded text of each sequence; no ids."""
        rows = []
        for sequence in self.sequences:
            row = asdict(sequence)
            del row["ids"], row["target_ids"]
            rows.append(row | {"text": self.encoder.decode(sequence.ids)})
        return {"step": self.step, "loss": self.loss, "log": self.log, "sequences": rows}

    def texts(self, tokens: int | None, borders: bool = False) -> Iterator[Text]:
        """Each sequence as a person reads it; see `row_text` for `tokens` and `borders`."""
        for sequence in self.sequences:
            head = (
                f"sample {sequence.sample:,} · micro-batch {sequence.micro_batch}, row "
                f"{sequence.row} · {sequence.source}, epoch {sequence.epoch} · "
                f"{sequence.targets:,} targets\n"
            )
            pieces = [RowPiece(each.place, each.url or each.id) for each in sequence.documents]
            ids, targets = np.array(sequence.ids), np.array(sequence.target_ids)
            yield Text(head, style="bold").append_text(
                row_text(ids, targets, pieces, self.encoder, tokens=tokens, borders=borders)
            )


def trace(path: str, step: int, source: str | None = None) -> TracedStep:
    """The sequences of update `step` (from 1) of the run at `path`: a run file or a run folder.

    `source`: those of this source alone. Raises ConfigError for a step or source that the run does
    not have, DataError where its tokens are gone.
    """
    run, folder = _open_run(path)
    if not 1 <= step <= run.training.steps:
        raise ConfigError(f"--step {step}: {path} has the steps 1 to {run.training.steps}")
    tokens = storage.absolute(run.tokens)
    batches = pretrain.open_batches(tokens, run.batches, run.cache)
    if source is not None and source not in batches.sources:
        raise ConfigError(
            f"--source: {run.tokens} has no source '{source}'"
            f"{did_you_mean(source, batches.sources)}"
        )
    tokenizer = manifest.read_file(tokens, "tokenizer.json").decode()
    encoder = Encoder(tokenizer, storage.join(tokens, "tokenizer.json"))
    if encoder.fingerprint != batches.shards.vocabulary.fingerprint:
        raise DataError(f"{run.tokens}: its tokenizer.json is not that of its shards")
    batch = batches.at(step - 1)
    sequences = tuple(
        sequence
        for index, micro in enumerate(batch)
        for sequence in _sequences(index, micro, batches, encoder)
        if source in (None, sequence.source)
    )
    log, loss = _evidence(folder, step, batch)
    return TracedStep(step, loss, log, sequences, encoder)


def _open_run(path: str) -> tuple[Pretraining, str | None]:
    """The run file at `path`, or that of the run folder `path` with the folder."""
    folder = path if not path.endswith(".toml") else None
    file = storage.join(path, RUN_FILE) if folder else path
    if folder and not storage.exists(file):
        raise ConfigError(f"{path}: no {RUN_FILE} in it; name a run file or a run folder")
    found = config.parse(config.read_text(file), file).get("stage")
    if found != Pretraining.verb:
        raise ConfigError(
            f"{file}: a run of `{found}`; the steps of `{Pretraining.verb}` can be traced"
        )
    run = config.load(Pretraining, file)
    if folder:
        run = _found_from(folder, run)
    if not storage.list_files(run.tokens):
        raise DataError(f"{file}: tokens = {run.tokens}: nothing there, seen from {Path.cwd()}")
    manifest.read_input(run.tokens, "tokenize")
    return run, folder


def _found_from(folder: str, run: Pretraining) -> Pretraining:
    """`run`, whose tokens may lie where they lay beside its folder: both were moved, or an older
    trainrig recorded the paths as they were written."""
    there = storage.exists(storage.join(run.tokens, manifest.MANIFEST))
    on_disk = not any(path.startswith(storage.S3) for path in (folder, run.tokens, run.output))
    same_start = Path(run.tokens).is_absolute() == Path(run.output).is_absolute()
    if not on_disk or not same_start or (there and Path(run.tokens).is_absolute()):
        return run
    beside = os.path.normpath(os.path.join(folder, os.path.relpath(run.tokens, run.output)))  # noqa: PTH118
    found = storage.exists(storage.join(beside, manifest.MANIFEST))
    return run.model_copy(update={"tokens": beside}) if found else run


def _sequences(
    index: int, micro: MicroBatch, batches: PretrainBatches, encoder: Encoder
) -> Iterator[TracedSequence]:
    for row, sample in enumerate(micro.samples.tolist()):
        where = batches.locate(sample)
        ids, targets = micro.ids[row], micro.targets[row]
        filled = len(ids) - padding(ids, encoder)
        ends = [piece.place for piece in where.pieces[1:]] + [filled]
        yield TracedSequence(
            sample=sample,
            micro_batch=index,
            row=row,
            source=where.source,
            epoch=where.epoch,
            targets=int((targets != IGNORE).sum()),
            documents=tuple(
                TracedDocument(
                    place=piece.place,
                    tokens=end - piece.place,
                    id=piece.document.id,
                    url=piece.document.url,
                    corpus_file=piece.document.corpus_file,
                    corpus_row=piece.document.corpus_row,
                )
                for piece, end in zip(where.pieces, ends, strict=True)
            ),
            ids=tuple(ids.tolist()),
            target_ids=tuple(targets.tolist()),
        )


def _evidence(
    folder: str | None, step: int, batch: tuple[MicroBatch, ...]
) -> tuple[Log, float | None]:
    """What the run folder's logs say of the step."""
    if folder is None:
        return "not asked", None
    losses = {line["step"]: line["train/loss"] for line in metrics.series(folder)}
    logged = trained_samples(RunFolder(folder)).get(step)
    if logged is None:
        return "none", losses.get(step)
    computed = sorted(sample for micro in batch for sample in micro.samples.tolist())
    return ("agrees" if logged == computed else "differs"), losses.get(step)
