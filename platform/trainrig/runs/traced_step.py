"""A traced step: its sequences, their documents, and their display."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from rich.text import Text

from trainrig.tokens.row_view import RowPiece, render_row
from trainrig.tokens.tokenizers.encode import Encoder


@dataclass(frozen=True)
class TracedDocument:
    """A piece of a document in a sequence."""

    place: int  # position of its first id in the sequence
    tokens: int  # number of its ids among the sequence's T
    id: str
    url: str
    corpus_file: str
    corpus_row: int  # row of the document in that file


@dataclass(frozen=True)
class TracedSequence:
    """One row of one micro-batch."""

    sample: int
    micro_batch: int
    row: int
    source: str
    # "chosen" or "rejected" for a pair; the reward for a rollout; "input" or "target" for a row for
    # an encoder and a decoder; else empty.
    answer: str
    epoch: int  # number of the pass over the source, from 0
    targets: int  # number of ids that are trained on
    documents: tuple[TracedDocument, ...]
    ids: tuple[int, ...]
    target_ids: tuple[int, ...]


Log = Literal["agrees", "differs", "none", "not asked"]
"""Comparison of the computed samples with the workers' logs.

"none": no worker logged the step. "not asked": a run file was traced, so there are no logs.
"""


@dataclass(frozen=True)
class TracedStep:
    """Step with all sequences of its global batch."""

    step: int | None  # update, from 1; None: the user named a batch
    data_step: int  # batch, from 0
    loss: float | None  # nats per target; None: not trained yet, or not from a run folder
    log: Log
    sequences: tuple[TracedSequence, ...]
    encoder: Encoder

    @property
    def verdict(self) -> str:
        """Summary of the step in one line, with the result of the comparison with logs."""
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        evidence = {
            "agrees": "the workers logged the same samples",
            "differs": "THE WORKERS LOGGED OTHER SAMPLES: the run did not train on those below",
            "none": "no worker logged this step",
            "not asked": "planned; name the run folder to compare them with the workers' logs",
        }[self.log]
        if self.step is None:
            return f"data step {self.data_step}: {len(self.sequences)} sequences"
        return f"step {self.step}: {len(self.sequences)} sequences{loss}; {evidence}"

    def to_json(self) -> dict[str, Any]:
        """Return the step as a JSON object, with decoded text instead of ids."""
        rows = []
        for sequence in self.sequences:
            row = asdict(sequence)
            del row["ids"], row["target_ids"]
            rows.append(row | {"text": self.encoder.decode(sequence.ids)})
        where = {"step": self.step, "data_step": self.data_step}
        return {**where, "loss": self.loss, "log": self.log, "sequences": rows}

    def render_texts(self, tokens: int | None, borders: bool = False) -> Iterator[Text]:
        """Yield each sequence as readable text; see `render_row` for `tokens` and `borders`."""
        for sequence in self.sequences:
            which = f" · {sequence.answer}" if sequence.answer else ""
            head = (
                f"sample {sequence.sample:,} · micro-batch {sequence.micro_batch}, row "
                f"{sequence.row}{which} · {sequence.source}, epoch {sequence.epoch} · "
                f"{sequence.targets:,} targets\n"
            )
            pieces = [
                RowPiece(document.place, document.url or document.id)
                for document in sequence.documents
            ]
            pieces = pieces or [RowPiece(0, sequence.source)]
            ids = np.array(sequence.ids)
            targets = np.array(sequence.target_ids)
            yield Text(head, style="bold").append_text(
                render_row(ids, targets, pieces, self.encoder, tokens=tokens, borders=borders)
            )
