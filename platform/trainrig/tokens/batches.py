"""The interface of batches: the global batch of any step, in any order of requests.

Shapes: B sequences of a micro-batch, T positions, P pieces of documents in all its rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from numpy.typing import NDArray
from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.tokens.permutation import Integers

IGNORE = -100  # target of a position that is not trained on


# Names of a micro-batch's arrays that models and token objectives read.
IDS = "ids"  # [B, T]
TARGETS = "targets"  # [B, T], IGNORE where not trained on
POSITIONS = "positions"  # [B, T] position of each id in its own document
PREFIXES = "prefixes"  # [B, T] whether all ids of the same document may attend to the id
# Denominator of every batch: number of targets trained on. Progress and tokens/s count by it.
TOKENS = "tokens"
# Batches of conversations: weight of each target in hundredths, and as a denominator their sum.
WEIGHTS = "weights"  # [B, T]

# Batches in which a generator replaces tokens.
TEXT_PLACES = "text_places"  # [B, T] whether each position is text
# [B, T] float64 in [0, 1), random number that selects the replacement of a token; below 0 where no
# token is replaced.
DRAWS = "draws"
PLACES = "places"  # denominator: positions of text

# Batches for an encoder and a decoder: IDS [B, S] is the encoder's input, TARGETS [B, T] the
# decoder's output.
DECODER_IDS = "decoder_ids"  # [B, T] input of the decoder: the targets, shifted by one position
# Document of each position, ascending from 1; 0 for padding. Attention is limited to a document.
SEGMENTS = "segments"  # [B, S]
DECODER_SEGMENTS = "decoder_segments"  # [B, T]

# Batches of preference pairs. Targets are IGNORE outside the completion.
CHOSEN_IDS = "chosen_ids"  # [B, T]
CHOSEN_TARGETS = "chosen_targets"  # [B, T]
REJECTED_IDS = "rejected_ids"  # [B, T]
REJECTED_TARGETS = "rejected_targets"  # [B, T]
# [B] float64 sum of the log-probabilities of each completion under the reference model.
CHOSEN_REFERENCE = "chosen_reference"
REJECTED_REFERENCE = "rejected_reference"
MARGINS = "margins"  # [B] float64, difference in quality between the chosen and the rejected answer
PAIRS = "pairs"  # denominator
CHOSEN_TOKENS = "chosen_tokens"  # denominator

# Batches of completions labelled as desirable or undesirable, in addition to IDS and TARGETS.
LABELS = "labels"  # [B] 1: desirable, 0: undesirable
KL_IDS = "kl_ids"  # [B, T] prompts with the completion of another row
KL_TARGETS = "kl_targets"  # [B, T]
REFERENCE = "reference"  # [B] float64, like CHOSEN_REFERENCE
KL_REFERENCE = "kl_reference"  # [B] float64, the same for KL_TARGETS
EXAMPLES = "examples"  # denominator

# Batches of solutions divided into steps, in addition to IDS. At the last token of a step: 1 if the
# step is right, 0 if it is wrong; IGNORE elsewhere.
STEP_LABELS = "step_labels"  # [B, T]
STEPS = "steps"  # denominator

# Arrays that are IGNORE at positions without a loss.
IGNORABLE = frozenset({TARGETS, CHOSEN_TARGETS, REJECTED_TARGETS, KL_TARGETS, STEP_LABELS})

# Batches for classifying texts or pairs of texts, in addition to IDS and SEGMENTS, which is 1 for
# tokens. Their denominator is EXAMPLES.
TEXTS = "texts"  # [B, T] the text of the pair that each position belongs to
CLASSES = "classes"  # [B] class of each row
# Batches of questions about a text.
CONTEXT = "context"  # [B, T] whether each position is in the text
ANSWER_STARTS = "answer_starts"  # [B] first position of the answer
ANSWER_ENDS = "answer_ends"  # [B] last position of the answer

# Batches of conversations for distillation: the teacher's E most probable entries of the vocabulary
# at each position with a target, most probable first; 0 elsewhere.
TEACHER_IDS = "teacher_ids"  # [B, T, E] int32
TEACHER_LOG = "teacher_log_probabilities"  # [B, T, E] float32
TEACHER_REST = "teacher_rest"  # [B, T] float32, log-probability of all other entries together

# Batches of rollouts, in addition to IDS and TARGETS: sampled completions and their rewards.
ADVANTAGES = "advantages"  # [B] float32
REWARDS = "rewards"  # [B] float32, the weighted sum; its parts are named REWARD_PART + name
REWARD_PART = "reward."
# [B] float32, weight of the divergence from the reference, if it adapts during the run.
DIVERGENCE_WEIGHT = "divergence_weight"
# With a critic:
VALUES = "values"  # [B, T] float32, the critic's values when the batch was made
RETURNS = "returns"  # [B, T] float32, the returns that the critic should predict
TOKEN_ADVANTAGES = "token_advantages"  # [B, T] float32
REWARD_FAULTS = "reward_faults"  # [B] float32, rewards that failed, per completion sampled with it
FLAT = "flat"  # [B] 1 if all completions of the prompt have the same reward: no learning signal
DISTINCT = "distinct"  # [B] float32, different completions of the prompt, per completion
# [B] float32, share of the completions of other prompts in the micro-batch that are the same.
SHARED = "shared"
WAVES = "waves"  # [B] float32, waves of prompts that were sampled until the batch was full
TURNS = "turns"  # [B] number of the model's turns, with an environment
FINISHED = "finished"  # [B] 1 if the model ended its answer, 0 if it was cut off at the limit
# [B, T] float32 log-probabilities of the targets, 0 elsewhere:
OLD = "old"  # under the weights when the batch was made, computed as in training
SAMPLED = "sampled"  # reported by the sampler
REFERENCE_TOKENS = "reference_tokens"  # under the reference model
# If other weights sampled than those that the batch updates:
BEHAVIOUR = "behaviour"  # [B, T] float32, like OLD, but under the weights that sampled
IMPORTANCE = "importance"  # [B, T] float32, importance weight of each token's loss
IMPORTANCE_LIMIT = "importance_limit"  # [B] maximum of IMPORTANCE
# If unfinished completions are continued in later batches:
STALENESS = "staleness"  # [B, T] age, in batches, of the weights that sampled each token; else 0
UNFINISHED = "unfinished"  # [B] float32, unfinished completions per completion of the batch
TEACHER_TOKENS = "teacher_tokens"  # [B, T] log-probabilities under a teacher, for distillation
LIMIT_TOKENS = "limit_tokens"  # [B] maximum tokens of a completion; as a denominator, their sum
TEMPERATURE = "temperature"  # [B] float32, sampling temperature, the same in all rows
ENTRIES = "entries"  # [B] entries of the vocabulary that can be sampled; later ones are padding


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and backward pass, which no number of workers changes.

    It has named arrays, each with a first dimension of B rows, and the identity of each row. The
    batches and the objective agree on the names; the training loop only passes the arrays on.
    """

    arrays: Mapping[str, NDArray[Any]]
    samples: Integers  # [B] global sample numbers, the keys of random numbers and of the trace
    sources: Integers  # [B] index of each row's source in the `sources` of the batches
    pieces: Integers  # [P, 3] (row, position in it, document's number in its source), ascending

    @property
    def ids(self) -> Integers:
        """Token ids [B, T]."""
        return self.arrays[IDS]

    @property
    def targets(self) -> Integers:
        """The id to predict at each position [B, T], IGNORE where not trained on."""
        return self.arrays[TARGETS]

    @property
    def positions(self) -> Integers | None:
        """Position of each id in its document [B, T]; None: attention crosses documents."""
        return self.arrays.get(POSITIONS)


def build_token_arrays(
    ids_BT: Integers, targets_BT: Integers, positions_BT: Integers | None = None
) -> dict[str, Integers]:
    """Return the arrays of a micro-batch for next-token prediction."""
    arrays = {IDS: ids_BT, TARGETS: targets_BT}
    return arrays if positions_BT is None else arrays | {POSITIONS: positions_BT}


class DataHistory(Protocol):
    """The interface of a data source that describes the data used so far in a run."""

    def data_before(self, step: int) -> Mapping[str, Any]:
        """Return all that the batches before `step` depend on, by name, as JSON values.

        Two runs with equal results have trained on the same samples up to `step`.
        """
        ...


class Batches(DataHistory, Protocol):
    """The interface of a data source for the training loop: batches are pure functions of the step.

    Only `assign_micro_batches` depends on the number of workers.
    """

    @property
    def sources(self) -> Sequence[str]:
        """Source names, which the `sources` of micro-batches index."""
        ...

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches in the global batch of `step` (from 0)."""
        ...

    def denominators(self, step: int) -> Mapping[str, int]:
        """Return the denominators of the global batch of `step`, by name, without reading rows.

        TOKENS is always there, in addition to the names that the terms of the objective use.
        """
        ...

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Return micro-batch `index` of `step`."""
        ...


class Corruption(Protocol):
    """A transformation that an objective applies to the rows of pretraining, such as masking.

    It is pickled to the workers and applied there, to one micro-batch at a time; it does not depend
    on torch. The result for a row is a function of its ids, its sample number and the step alone,
    with random numbers from `trainrig.randomness`. The weight of each row is known without its ids:
    `denominators` is called before any row is read.

    The text of a row is its targets for next-token prediction, without IGNORE. So each token of an
    epoch is in exactly one row.
    """

    def identity(self) -> Mapping[str, Any]:
        """Return all that the result depends on besides the text, as JSON values."""
        ...

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the contribution of a transformed micro-batch of `step` to each denominator.

        `samples` [R] are the rows, `targets` [R] their numbers of next-token targets before the
        transformation. The result has TOKENS, the number of targets that are left.
        """
        ...

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """Return `micro` with its rows transformed, its samples, sources and document numbers kept.

        The result's `pieces` give the positions in its IDS. Held-out rows are requested at step 0,
        whatever the step of the run, so that losses differ because of the model alone.
        """
        ...


@runtime_checkable
class MixedCorruption(Protocol):
    """A corruption that chooses one of several kinds for each row."""

    @property
    def by_micro_batch(self) -> bool:
        """Return whether all rows of a micro-batch get the same kind.

        Then the result for a row depends also on the first sample of its micro-batch.
        """
        ...

    def choose_by_sample(self) -> Corruption:
        """Return a corruption of the same kinds in which each row's sample chooses its kind."""
        ...


@dataclass(frozen=True)
class MicroBatchSlot:
    """A micro-batch of a step in the list of one worker.

    Gradients of consecutive micro-batches are added up on the worker; the sums of these runs are
    the leaves of the reduction over all workers.
    """

    index: int  # index of the micro-batch in the global batch
    real: bool  # False for padding: another worker has the micro-batch, and this result is dropped
    first: int  # index of the first micro-batch of the run that is added up
    closes: bool  # True for the last micro-batch of the run; then the sum enters the reduction


def assign_micro_batches(
    count: int, virtual: int, rank: int, world: int, peers: int = 1
) -> list[MicroBatchSlot]:
    """Return the micro-batches, of `count` in a step, that worker `rank` of `world` processes.

    Each worker has consecutive micro-batches; the numbers of any two workers differ by at most one.

    `virtual` is the number of virtual workers: parts of the step's micro-batches that stay the same
    for any number of workers, so that gradients are always added in the same order. A worker that
    has the first micro-batches of a part adds them up locally; a worker that has only later ones
    keeps them separate.

    `peers` is the number of consecutive workers that add up each round of micro-batches together.
    They take turns with the micro-batches of their group, and no worker adds up any locally.

    All workers get equally long lists, so that all of them join every collective operation. A
    worker with fewer micro-batches repeats micro-batch 0 and drops the result.
    """
    if not 0 <= rank < world:
        raise ValueError(f"no rank {rank} among {world} workers")
    rounds = -(-count // world)
    groups = world // peers
    begin = _find_part_begin(count, rank // peers, groups)
    end = _find_part_begin(count, rank // peers + 1, groups)
    if peers > 1:
        own = range(begin + rank % peers, end, peers)
        real = [MicroBatchSlot(index, True, index, closes=True) for index in own]
    else:
        real = [_build_slot(index, begin, end, count, virtual) for index in range(begin, end)]
    return real + [MicroBatchSlot(0, False, 0, closes=peers > 1)] * (rounds - len(real))


def _build_slot(index: int, begin: int, end: int, count: int, virtual: int) -> MicroBatchSlot:
    """Return the slot of micro-batch `index` on a worker that has those from `begin` to `end`."""
    first, last = find_virtual_worker(index, count, virtual)
    if first < begin:  # another worker has the earlier micro-batches of the virtual worker
        return MicroBatchSlot(index, True, index, closes=True)
    return MicroBatchSlot(index, True, first, closes=index == min(last, end) - 1)


def find_virtual_worker(index: int, count: int, virtual: int) -> tuple[int, int]:
    """Return the first micro-batch, and the one after the last, of a virtual worker.

    It is the one of `virtual` virtual workers that has micro-batch `index` of `count`.
    """
    number = ((index + 1) * virtual - 1) // count
    return _find_part_begin(count, number, virtual), _find_part_begin(count, number + 1, virtual)


def _find_part_begin(count: int, part: int, parts: int) -> int:
    """Return where part `part` begins if `count` things are divided as evenly as possible."""
    return count * part // parts


@dataclass(frozen=True)
class LocalBatch:
    """The work of one worker in one step."""

    assigned: Sequence[tuple[MicroBatch, bool]]  # (micro-batch, whether it is real)
    slots: Sequence[MicroBatchSlot]  # the slot of each of `assigned`
    micro_batches: int  # number of micro-batches in the whole global batch
    virtual: int  # number of virtual workers in this step
    denominators: Mapping[str, int]  # denominators of losses, for the whole global batch


def read_local_batch(
    batches: Batches,
    rank: int,
    world: int,
    step: int,
    virtual: int | None = None,
    peers: int = 1,
) -> LocalBatch:
    """Read the micro-batches of worker `rank` of `world` in `step`, and no others.

    `virtual` is the maximum number of virtual workers; None means one for each worker. For `peers`
    see `assign_micro_batches`.
    """
    count = batches.micro_batches(step)
    virtual_workers = world if virtual is None else min(virtual, count)
    slots = assign_micro_batches(count, virtual_workers, rank, world, peers)
    assigned = [(batches.micro_batch(step, slot.index), slot.real) for slot in slots]
    return LocalBatch(assigned, slots, count, virtual_workers, batches.denominators(step))


class BatchSizes(Settings):
    """Settings for the size and the random order of batches."""

    sequence_length: int = Field(ge=1)  # tokens in a sequence
    global_batch: int = Field(ge=1)  # sequences in a step, over all workers
    micro_batch: int = Field(ge=1)  # sequences in one forward pass; more need more memory
    seed: int = 0  # random seed of the order of the data

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
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
