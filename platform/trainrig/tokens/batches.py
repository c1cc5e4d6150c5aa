"""The interface of batches: the global batch of a step, for any caller in any order.

Shapes: B sequences of a micro-batch, T positions, P pieces of documents in all rows of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from numpy.typing import NDArray
from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.tokens.permutation import Integers

IGNORE = -100  # a target that is not trained on


# Names of arrays of a micro-batch that models and token objectives read.
IDS = "ids"  # [B, T]
TARGETS = "targets"  # [B, T], IGNORE where not trained on
POSITIONS = "positions"  # [B, T] place of each id in its own document
PREFIXES = "prefixes"  # [B, T] whether all of its own document sees each id
# Denominator that every batch has: targets trained on. Progress and tokens/s count by it.
TOKENS = "tokens"
# Of batches of conversations: what each target counts, in hundredths, and the sum of that.
WEIGHTS = "weights"  # [B, T]; also a denominator

# Of batches in which a generator replaces some tokens: whether each place is one of text, and in
# [0, 1) what the token there is drawn by, where one is; below 0 elsewhere.
TEXT_PLACES, DRAWS = "text_places", "draws"  # [B, T], [B, T] float64
PLACES = "places"  # denominator: places of text

# Of batches for an encoder and a decoder, beside IDS [B, S], what is encoded, and TARGETS [B, T].
DECODER_IDS = "decoder_ids"  # [B, T] what the decoder reads: each target stands one place later
# The document of each place, ascending from 1; 0 where there is padding. No place sees another's.
SEGMENTS, DECODER_SEGMENTS = "segments", "decoder_segments"  # [B, S], [B, T]

# Of batches of pairs, an answer preferred to another. Targets are IGNORE outside the completion.
CHOSEN_IDS, CHOSEN_TARGETS = "chosen_ids", "chosen_targets"  # [B, T]
REJECTED_IDS, REJECTED_TARGETS = "rejected_ids", "rejected_targets"  # [B, T]
# [B] float64 sums of the log-probabilities of each completion under the reference model.
CHOSEN_REFERENCE, REJECTED_REFERENCE = "chosen_reference", "rejected_reference"
MARGINS = "margins"  # [B] float64, by how much the chosen answer is the better one
PAIRS, CHOSEN_TOKENS = "pairs", "chosen_tokens"  # denominators

# Of batches of completions that are wanted or not, beside IDS and TARGETS.
LABELS = "labels"  # [B] 1: wanted, 0: not
KL_IDS, KL_TARGETS = "kl_ids", "kl_targets"  # [B, T] prompts with another row's completion
REFERENCE, KL_REFERENCE = "reference", "kl_reference"  # [B] float64, as CHOSEN_REFERENCE
EXAMPLES = "examples"  # denominator

# Of batches of solutions in steps, beside IDS: at the last token of a step 1, it is right, or 0, it
# is not; IGNORE elsewhere.
STEP_LABELS = "step_labels"  # [B, T]
STEPS = "steps"  # denominator

# Arrays that are IGNORE where nothing is asked.
ASKED = frozenset({TARGETS, CHOSEN_TARGETS, REJECTED_TARGETS, KL_TARGETS, STEP_LABELS})

# Of batches of whole texts, alone or in pairs, beside IDS and SEGMENTS, which is 1 where there is a
# token: which text of a pair each is of, and the class of each row. EXAMPLES is their denominator.
TEXTS, CLASSES = "texts", "classes"  # [B, T], [B]
# Of questions, each with a text: whether a place is of that, and the answer's first and last place.
CONTEXT = "context"  # [B, T]
ANSWER_STARTS, ANSWER_ENDS = "answer_starts", "answer_ends"  # [B]

# Of batches of conversations that a teacher has read: what it expects at each place that has a
# target, E entries of the vocabulary, the likeliest first; 0 elsewhere.
TEACHER_IDS = "teacher_ids"  # [B, T, E] int32
TEACHER_LOG = "teacher_log_probabilities"  # [B, T, E] float32
TEACHER_REST = "teacher_rest"  # [B, T] float32, the log-probability of all other entries together

# Of batches of rollouts, beside IDS and TARGETS: completions with what they are worth.
ADVANTAGES = "advantages"  # [B] float32
REWARDS = "rewards"  # [B] float32, the weighted sum; parts are named REWARD_PART + name
REWARD_PART = "reward."
DIVERGENCE_WEIGHT = "divergence_weight"  # [B] float32, of what holds to the reference, if it moves
# [B, T] float32, of tokens, where there is a critic: its values when the batch was made, what they
# should have been, and advantages of their own.
VALUES, RETURNS, TOKEN_ADVANTAGES = "values", "returns", "token_advantages"
REWARD_FAULTS = "reward_faults"  # [B] float32, rewards that failed, per completion of the unit
FLAT = "flat"  # [B] 1 where all completions of a prompt got the same reward: nothing is learnt
WAVES = "waves"  # [B] float32, waves of prompts that were drawn until the batch was full
TURNS = "turns"  # [B] times that the model spoke, where there is an environment
FINISHED = "finished"  # [B] 1 where the model ended its answer, 0 where the limit did
# [B, T] float32 log-probabilities of the targets, 0 where there is none: by the weights that
# sampled, read as training reads; as they were when sampled; and under the reference.
OLD, SAMPLED, REFERENCE_TOKENS = "old", "sampled", "reference_tokens"
# [B, T] float32, where the weights that sampled are not those of the update: log-probabilities by
# the former, read as training reads (OLD is by the weights when the batch was made), and what the
# loss of each token is weighed with for it, which is [B] IMPORTANCE_LIMIT at most.
BEHAVIOUR, IMPORTANCE, IMPORTANCE_LIMIT = "behaviour", "importance", "importance_limit"
# [B, T] batches by which the weights that sampled a token are behind those of its batch, 0 outside
# the targets; and [B] float32 completions that were left unfinished, for each of the batch: where
# completions are left off and gone on with.
STALENESS, UNFINISHED = "staleness", "unfinished"
TEACHER_TOKENS = "teacher_tokens"  # [B, T] the same under the teacher, where tokens learn of one
LIMIT_TOKENS = "limit_tokens"  # [B] tokens that each may have; also a denominator
TEMPERATURE = "temperature"  # [B] float32, that all were sampled with
ENTRIES = "entries"  # [B] entries of the vocabulary that are drawn from; later ones only pad it


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass sees; the unit that no number of workers changes.

    A mapping of named arrays, each with a first dimension of B rows, and the identity of each row.
    What the names mean is between the batches and the objective: the loop passes them on.
    """

    arrays: Mapping[str, NDArray[Any]]
    samples: Integers  # [B] global sample numbers, the keys of RNG and trace
    sources: Integers  # [B] number of each row's source among the `sources` of the batches
    pieces: Integers  # [P, 3] (row, place in it, number of the document in its source), ascending

    @property
    def ids(self) -> Integers:
        """[B, T] token ids."""
        return self.arrays[IDS]

    @property
    def targets(self) -> Integers:
        """[B, T] the id to predict at each place, IGNORE where not trained on."""
        return self.arrays[TARGETS]

    @property
    def positions(self) -> Integers | None:
        """[B, T] place of each id in its own document; None: attention crosses documents."""
        return self.arrays.get(POSITIONS)


def build_token_arrays(
    ids_BT: Integers, targets_BT: Integers, positions_BT: Integers | None = None
) -> dict[str, Integers]:
    """The arrays of a micro-batch of which each next token is predicted."""
    arrays = {IDS: ids_BT, TARGETS: targets_BT}
    return arrays if positions_BT is None else arrays | {POSITIONS: positions_BT}


class DataHistory(Protocol):
    """What a run was trained on so far."""

    def data_before(self, step: int) -> Mapping[str, Any]:
        """All that the batches before `step` depend on, by name, as JSON has it.

        Two runs that agree in it have trained on the same samples up to `step`.
        """
        ...


class Batches(DataHistory, Protocol):
    """Where a training loop has its batches from: pure functions of the step.

    Nothing but `assign_micro_batches` knows how many workers there are.
    """

    @property
    def sources(self) -> Sequence[str]:
        """Names that the `sources` of micro-batches number."""
        ...

    def micro_batches(self, step: int) -> int:
        """How many micro-batches make up the global batch of `step` (from 0)."""
        ...

    def denominators(self, step: int) -> Mapping[str, int]:
        """What sums over the whole global batch of `step` are divided by, by name, without reading
        it: TOKENS always, and whatever else an objective's terms name."""
        ...

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Micro-batch `index` of `step`."""
        ...


class Corruption(Protocol):
    """What an objective makes of the rows of pretraining before a model sees them: a masked or a
    rearranged text, say. Travels to the workers by pickle and is applied there, one micro-batch at
    a time; it holds nothing of torch.

    What becomes of a row is a function of its ids, its sample number and the step alone, drawn by
    `trainrig.randomness`. How much each row counts is known without its ids: `denominators` is
    asked before any row is read.

    The text of a row is what next-token prediction would be trained on: its targets, IGNORE left
    out. So each token of an epoch is in one row once.
    """

    def identity(self) -> Mapping[str, Any]:
        """All that its rows depend on beside the text, as JSON has it."""
        ...

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """What a micro-batch of `step` adds to what sums over the global batch are divided by, once
        it is corrupted.

        `samples` [R], `targets` [R]: each row, and its next-token targets before. TOKENS is among
        them, and counts the targets that are left.
        """
        ...

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """`micro` with its rows corrupted; samples, sources and the numbers of pieces stay.

        `pieces` says where in the rows of IDS each begins. Held-out rows are asked for at step 0,
        whatever the step of the run, so that two figures differ by the model alone.
        """
        ...


@runtime_checkable
class DealtCorruption(Protocol):
    """A corruption of several kinds, of which each row gets one."""

    @property
    def by_micro_batch(self) -> bool:
        """Whether all rows of a micro-batch get the same one: then what becomes of a row depends on
        the first sample of its micro-batch too."""
        ...

    def deal_by_sample(self) -> Corruption:
        """The same kinds, each row's chosen by its own sample."""
        ...


@dataclass(frozen=True)
class MicroBatchSlot:
    """A micro-batch of a step, assigned to a worker."""

    index: int  # of the micro-batch
    real: bool  # else what comes of it is dropped: it is another's
    first: int  # of the micro-batches that are added up, one after another, up to this one
    closes: bool  # it is the last of those; their sum takes its place in the tree


def assign_micro_batches(
    count: int, virtual: int, rank: int, world: int, peers: int = 1
) -> list[MicroBatchSlot]:
    """What worker `rank` out of `world` does with the `count` micro-batches of a step.

    Each worker has neighbouring micro-batches, as many as any other or one fewer. Those of a
    virtual worker, which are neighbours too, are added one after another: a worker that begins
    with its first ones adds them up itself, and one that has later ones keeps them apart.

    `peers`: so many neighbouring workers add up each round of micro-batches together; of those that
    they have between them each takes one in turn, and none are added up by a worker itself.

    All workers have the same number of slots, so that all join every collective; one that lacks a
    micro-batch repeats another, whose result it drops.
    """
    if not 0 <= rank < world:
        raise ValueError(f"no rank {rank} among {world} workers")
    rounds = -(-count // world)
    groups = world // peers
    begin, end = (
        _find_part_begin(count, rank // peers, groups),
        _find_part_begin(count, rank // peers + 1, groups),
    )
    if peers > 1:
        own = range(begin + rank % peers, end, peers)
        real = [MicroBatchSlot(index, True, index, closes=True) for index in own]
    else:
        real = [_build_slot(index, begin, end, count, virtual) for index in range(begin, end)]
    return real + [MicroBatchSlot(0, False, 0, closes=peers > 1)] * (rounds - len(real))


def _build_slot(index: int, begin: int, end: int, count: int, virtual: int) -> MicroBatchSlot:
    """Micro-batch `index`, of a worker that has those from `begin` to `end`."""
    first, last = find_virtual_worker(index, count, virtual)
    if first < begin:  # what comes before it is another's
        return MicroBatchSlot(index, True, index, closes=True)
    return MicroBatchSlot(index, True, first, closes=index == min(last, end) - 1)


def find_virtual_worker(index: int, count: int, virtual: int) -> tuple[int, int]:
    """The first of `count` micro-batches that are of the same one of `virtual` virtual workers as
    micro-batch `index`, and that after the last."""
    number = ((index + 1) * virtual - 1) // count
    return _find_part_begin(count, number, virtual), _find_part_begin(count, number + 1, virtual)


def _find_part_begin(count: int, part: int, parts: int) -> int:
    """Where part number `part` of `count` things begins, cut into `parts` as even as can be."""
    return count * part // parts


@dataclass(frozen=True)
class LocalBatch:
    """What one worker has to do of one step."""

    assigned: Sequence[tuple[MicroBatch, bool]]  # each with whether it is real
    slots: Sequence[MicroBatchSlot]  # of each of `assigned`
    micro_batches: int  # in the whole global batch
    virtual: int  # virtual workers of this step
    denominators: Mapping[str, int]  # of the whole global batch: what losses are divided by


def read_local_batch(
    batches: Batches,
    rank: int,
    world: int,
    step: int,
    virtual: int | None = None,
    peers: int = 1,
) -> LocalBatch:
    """The micro-batches that worker `rank` out of `world` has in `step`; no other's is read.

    `virtual`: how many virtual workers there are at most; None: as many as workers. `peers`: see
    `assign_micro_batches`.
    """
    count = batches.micro_batches(step)
    there = world if virtual is None else min(virtual, count)
    slots = assign_micro_batches(count, there, rank, world, peers)
    assigned = [(batches.micro_batch(step, slot.index), slot.real) for slot in slots]
    return LocalBatch(assigned, slots, count, there, batches.denominators(step))


class BatchSizes(Settings):
    """How many sequences make up the batch of each step, how long, and in what order."""

    sequence_length: int = Field(ge=1)  # tokens of a sequence
    global_batch: int = Field(ge=1)  # sequences of a step, over all workers
    micro_batch: int = Field(ge=1)  # sequences of one forward pass; more take more memory
    seed: int = 0  # random seed of the order of data

    @model_validator(mode="after")
    def _divides(self) -> Self:
        check_divides(self.global_batch, self.micro_batch)
        return self


def check_divides(global_batch: int, micro_batch: int) -> None:
    """Raise ValueError unless a global batch is a whole number of micro-batches."""
    rest = global_batch % micro_batch
    if rest:
        above = global_batch + micro_batch - rest
        raise ValueError(
            f"global_batch ({global_batch} sequences) is not a multiple of micro_batch "
            f"({micro_batch}); the nearest above: {above}"
        )
