"""Contract of objectives: what each declares about its rows, work, heads, layouts and models.

The run-file checks, the estimates of memory and operations, the layouts, the sweeps, the reports
and the training loop ask an objective for these declarations, so none of them knows a kind by its
name. How the loss is computed is in objective_interface.py.

The defaults fit an objective that reads rows of plain text as they are, cannot be divided over
workers, and needs no other model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from trainrig.config import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainrig.objectives.objective_interface import DeviceBatch
    from trainrig.tokens.rows.packing import Packing

# Kinds of rows that training reads: `text` is packed documents; `sampled` are the model's own
# answers; the others are what `conversations` writes.
Rows = Literal[
    "text", "conversations", "pairs", "labelled", "steps", "classified", "questions", "sampled"
]
Axis = Literal["context", "expert", "tensor", "pipeline"]
NO_AXES: frozenset[Axis] = frozenset()
EVERY_AXIS: frozenset[Axis] = frozenset({"context", "expert", "tensor", "pipeline"})
# Heads of models that score or label texts instead of generating them.
SCORING_HEADS = ("score", "classes", "spans")


@dataclass(frozen=True)
class RowWork:
    """Work of a model for one row of an objective, from which operations are counted."""

    places: int  # positions of the row; with `encoded`, of the decoder's row
    predicted: float = 1.0  # mean share of the positions with logits
    keys_ahead: float = 0.0  # mean number of keys after a query's position that it attends to
    encoded: int | None = None  # positions of an encoder's row; None: there is no encoder


class ObjectiveSettings(Settings):
    """Base of the settings of all objectives, which are the unions of objective_kinds.py."""

    if TYPE_CHECKING:  # subclasses declare it among their other fields, as a Literal
        kind: str

    # Kind of the rows to learn from.
    rows: ClassVar[Rows] = "text"
    # Head of the model that is trained.
    head: ClassVar[Literal["tokens", "replaced", "score", "classes", "spans"]] = "tokens"
    # Axes of parallelism along which workers can divide the rows, layers or vocabulary. The loss of
    # a token or an answer must then depend only on logits or scores at its own positions. The
    # pipeline also needs a single forward pass, with a loss that only the last stage computes.
    axes: ClassVar[frozenset[Axis]] = NO_AXES
    # Whether a step is one forward and one backward pass of the model over its rows.
    single_pass: ClassVar[bool] = False
    # How a frozen reference model is used: not at all; its log-probabilities are stored before the
    # training; or it is held in memory beside the trained model.
    reference_use: ClassVar[Literal["never", "stored", "beside"]] = "never"
    # Whether a teacher is needed.
    needs_teacher: ClassVar[bool] = False
    # Setting of the objective that makes it train an encoder-decoder; None: there is none.
    separates_by: ClassVar[str | None] = None
    # Why a mixture of objectives cannot have it as a member; None: it can be one.
    unmixable: ClassVar[str | None] = None
    # Why its losses at several model sizes give no law; None: they do.
    unsweepable: ClassVar[str | None] = None
    # Unit of the loss in reports, and the diagnostic with the share of correct rows, if any.
    loss_unit: ClassVar[str] = "nats"
    right_diagnostic: ClassVar[str | None] = None

    @property
    def statistics(self) -> Sequence[str]:
        """No sums over the global batch. See `Objective`."""
        return ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Return no statistics. See `Objective`."""
        return {}

    @classmethod
    def scores(cls) -> bool:
        """Return whether the model scores or labels texts instead of generating them."""
        return cls.head in SCORING_HEADS

    @property
    def model_kind(self) -> Literal["Decoder", "Encoder", "EncoderDecoder"]:
        """Kind of model that is trained from fresh weights."""
        return "Decoder"

    @property
    def further_heads(self) -> int:
        """Number of heads for tokens after the next one."""
        return 0

    @property
    def marks_prefixes(self) -> bool:
        """True if rows have prefixes with bidirectional attention, which need a mask."""
        return False

    @property
    def row_shape(self) -> tuple[object, ...] | None:
        """The settings that determine the width of rows; None if rows are as wide as the text.

        Equal for objectives with equal widths.
        """
        return None

    @property
    def changes_over_steps(self) -> bool:
        """True if the operations of a token change during a run."""
        return False

    @property
    def noises_embeddings(self) -> bool:
        """True if noise is added to whole rows of embeddings."""
        return False

    @property
    def teacher_temperature(self) -> float:
        """Temperature of the probabilities that the teacher stored, if one is needed."""
        return 1.0

    def check_rows(self, shortest: int, packing: Packing) -> None:
        """Raise ValueError for rows that it cannot train on.

        `shortest`: tokens of the shortest rows of a run.
        """

    def compute_widths(self, length: int) -> tuple[int, int]:
        """Return the places of the encoder or of a decoder alone, and of the encoder's decoder.

        They are made from a text of `length` tokens.
        """
        return length, 0

    def compute_row_length(self, length: int) -> int:
        """Return the positions of a decoder's row that is made from a text of `length` tokens."""
        return length

    def mean_rate(self, steps: int) -> float:
        """Return the mean share of tokens that are predicted over the first `steps` steps."""
        return 1.0

    def describe_row(self, length: int) -> str | None:
        """Return a description of the row from `length` tokens, or None for an unchanged row."""
        return None

    def measure_work(self, length: int, steps: int) -> RowWork:
        """Return what a model computes for a row of `length` tokens, on average over `steps`."""
        return RowWork(length, self.mean_rate(steps))


class NamedPart(Protocol):
    """Protocol of a member of a mixture."""

    @property
    def name(self) -> str:
        """The name in metrics."""
        ...

    @property
    def objective(self) -> ObjectiveSettings:
        """The objective of the member's samples."""
        ...


@runtime_checkable
class Mixed(Protocol):
    """Protocol of an objective that assigns each sample to one of several objectives."""

    @property
    def one_per_micro_batch(self) -> bool:
        """True if all samples of a micro-batch get the same objective."""
        ...

    def list_named(self) -> Sequence[NamedPart]:
        """Return the members of the mixture."""
        ...

    def parts(self) -> tuple[tuple[float, ObjectiveSettings], ...]:
        """Return the objectives of the mixture, each with its share of the samples."""
        ...


def find_parts(objective: ObjectiveSettings) -> tuple[tuple[float, ObjectiveSettings], ...]:
    """Return the objectives that samples are assigned to, each with its share of them.

    An objective that is not a mixture is its own only part.
    """
    return objective.parts() if isinstance(objective, Mixed) else ((1.0, objective),)
