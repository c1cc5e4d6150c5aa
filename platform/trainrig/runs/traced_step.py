"""A step as it is traced: its sequences, the documents in them, and how they are shown."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from rich.text import Text

from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.row_view import RowPiece, render_row


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
    # Of a pair, "chosen" or "rejected"; of a rollout, its reward; of a row for an encoder and a
    # decoder, "input" or "target"; else empty.
    answer: str
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

    step: int | None  # update, from 1; None: a batch was asked for
    data_step: int  # batch, from 0
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
        if self.step is None:
            return f"data step {self.data_step}: {len(self.sequences)} sequences"
        return f"step {self.step}: {len(self.sequences)} sequences{loss}; {evidence}"

    def as_json(self) -> dict[str, Any]:
        """With the decoded text of each sequence; no ids."""
        rows = []
        for sequence in self.sequences:
            row = asdict(sequence)
            del row["ids"], row["target_ids"]
            rows.append(row | {"text": self.encoder.decode(sequence.ids)})
        where = {"step": self.step, "data_step": self.data_step}
        return {**where, "loss": self.loss, "log": self.log, "sequences": rows}

    def render_texts(self, tokens: int | None, borders: bool = False) -> Iterator[Text]:
        """Each sequence as a person reads it; see `render_row` for `tokens` and `borders`."""
        for sequence in self.sequences:
            which = f" · {sequence.answer}" if sequence.answer else ""
            head = (
                f"sample {sequence.sample:,} · micro-batch {sequence.micro_batch}, row "
                f"{sequence.row}{which} · {sequence.source}, epoch {sequence.epoch} · "
                f"{sequence.targets:,} targets\n"
            )
            pieces = [RowPiece(each.place, each.url or each.id) for each in sequence.documents]
            pieces = pieces or [RowPiece(0, sequence.source)]
            ids = np.array(sequence.ids)
            targets = np.array(sequence.target_ids)
            yield Text(head, style="bold").append_text(
                render_row(ids, targets, pieces, self.encoder, tokens=tokens, borders=borders)
            )
