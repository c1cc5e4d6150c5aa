"""Batches of preference pairs, labelled answers and step-labelled solutions.

Each row of a micro-batch holds one answer after its prompt. Rows are padded to the longest answer
of the micro-batch; the two answers of a pair share one width.

Shapes: B rows of a micro-batch, T positions, N pairs or answers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching
from trainrig.tokens import batches
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.shard_files import DOCUMENT_TARGETS, RIGHT_STEP
from trainrig.tokens.shards.shard_files import LABELS as LABEL_ARRAY
from trainrig.tokens.shards.token_shards import TokenShards, check_rows

# Returns the reference model's summed log-probabilities of the chosen and of the rejected answers,
# [N] float64 each, for (source, [N] pair numbers).
PairReferences = Callable[[str, Integers], tuple[NDArray[np.float64], NDArray[np.float64]]]


class Answers:
    """Row layout over token shards in which a row is a group of `per_row` consecutive answers."""

    fingerprint = ""

    def __init__(self, shards: TokenShards, sequence_length: int, per_row: int) -> None:
        self._shards = shards
        self._length = sequence_length
        self._per_row = per_row

    def windows(self, source: str) -> int:
        """Return the number of rows in `source`."""
        return self._shards.count_documents(source) // self._per_row

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return the number of targets of each row, over all its answers, as [B]."""
        assert span == 1
        numbers = windows[:, None] * self._per_row + np.arange(self._per_row)
        found = self._shards.read_document_values(DOCUMENT_TARGETS, source, numbers.ravel())
        counts: Integers = found.reshape(numbers.shape).sum(axis=1)
        return counts

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill one row with the first answer of its group."""
        assert span == 1
        answer, weights = self.read_answer(source, window * self._per_row)
        fill_row(ids, targets, answer, weights)
        return np.array([[0, window * self._per_row]])

    def read_answer(self, source: str, number: int) -> tuple[Integers, Integers]:
        """Return the token ids and loss weights of one answer, including its prompt.

        Raises DataError if the answer is longer than a row.
        """
        longest = self._length + 1
        return read_document(self._shards, source, number, longest, "an answer that ends after")


def read_document(
    shards: TokenShards, source: str, number: int, longest: int, what: str
) -> tuple[Integers, Integers]:
    """Return the token ids and the weights of one document.

    Raises DataError for more than `longest` tokens; `what` begins its description of the document.
    """
    begin, end = shards.find_document_starts(source, np.array([number, number + 1])).tolist()
    if end - begin > longest:
        raise DataError(
            f"{shards.folder}: {source}: {what} {end - begin} tokens is longer than a row of "
            f"{longest}; raise sequence_length, or run `conversations` with this sequence_length"
        )
    ids, weights = np.empty((2, end - begin), dtype=np.int64)
    shards.read_into(source, begin, ids)
    shards.read_weights(source, begin, weights)
    return ids, weights


def fill_row(ids_T: Integers, targets_T: Integers, ids: Integers, weights: Integers) -> None:
    """Write the answer `ids` to the start of a row that already holds padding.

    Positions whose token has weight 0 keep the ignored target.
    """
    length = len(ids) - 1
    ids_T[:length] = ids[:-1]
    targets_T[:length] = np.where(weights[1:] > 0, ids[1:], batches.IGNORE)


def fill_rows(
    answers: Sequence[tuple[Integers, Integers]], width: int, padding: int
) -> tuple[Integers, Integers]:
    """Return the ids and the targets, [B, T] each, of one answer a row."""
    ids_BT = np.full((len(answers), width), padding, dtype=np.int64)
    targets_BT = np.full_like(ids_BT, batches.IGNORE)
    for row, (ids, weights) in enumerate(answers):
        fill_row(ids_BT[row], targets_BT[row], ids, weights)
    return ids_BT, targets_BT


def fill_arrays(
    padding: int, *given: tuple[tuple[str, str], Sequence[tuple[Integers, Integers]]]
) -> dict[str, NDArray[Any]]:
    """Return the ids and targets of answers under the given names, all as wide as the longest."""
    width = max(len(ids) for _, answers in given for ids, _ in answers) - 1
    arrays: dict[str, NDArray[Any]] = {}
    for (ids, targets), answers in given:
        arrays[ids], arrays[targets] = fill_rows(answers, width, padding)
    return arrays


class AnswerBatches(PretrainBatches):
    """Base class of the batches of rows that hold one document, or a pair of them."""

    def __init__(
        self, shards: TokenShards, sizes: ConversationBatching, padding: int, per_row: int
    ) -> None:
        self._answers = Answers(shards, sizes.sequence_length, per_row)
        self._token_shards = shards
        self._padding = padding
        super().__init__(shards, sizes.build_settings(sizes.weights), layout=self._answers)

    def data_before(self, step: int) -> dict[str, Any]:
        """Return everything that the samples before `step` depend on, as JSON by name."""
        return super().data_before(step) | {"conversations": self.shards.fingerprint}

    def _list_rows(self, step: int) -> list[tuple[str, Integers]]:
        """Return (source, [N] row numbers) for the whole global batch of `step`."""
        found = []
        for index in range(self.micro_batches(step)):
            _, places = self._locate_samples(step, index)
            found += [(source, rows.windows) for source, _, rows in self._iterate_rows(places)]
        return found


class PairBatches(AnswerBatches):
    """Batches of pairs of a chosen and a rejected answer; implements `Batches`."""

    def __init__(
        self,
        shards: TokenShards,
        sizes: ConversationBatching,
        padding: int,
        references: PairReferences | None = None,
    ) -> None:
        """Open pairs of `shards`; `padding` is the token id that fills rows up.

        `references` returns the reference log-probabilities of a pair; None leaves them out of
        micro-batches. Raises ConfigError if the shards hold rows of another kind.
        """
        check_rows(shards, "pairs")
        super().__init__(shards, sizes, padding, per_row=2)
        self._references = references

    def denominators(self, step: int) -> dict[str, int]:
        """Return the targets, the pairs and the targets of chosen answers in the global batch."""
        chosen = tokens = pairs = 0
        for source, numbers in self._list_rows(step):
            of_chosen = self._token_shards.read_document_values(
                DOCUMENT_TARGETS, source, numbers * 2
            )
            tokens += int(self._answers.targets(source, numbers, 1).sum())
            chosen = chosen + int(of_chosen.sum())
            pairs = pairs + len(numbers)
        return {batches.TOKENS: tokens, batches.PAIRS: pairs, batches.CHOSEN_TOKENS: chosen}

    def micro_batch(self, step: int, index: int) -> batches.MicroBatch:
        """Return micro-batch `index` of `step`."""
        samples, places, rows = self._choose_samples(step, index)
        chosen, rejected = (
            [self._answers.read_answer(source, 2 * pair + which) for source, pair in rows]
            for which in (0, 1)
        )
        arrays = fill_arrays(
            self._padding,
            ((batches.CHOSEN_IDS, batches.CHOSEN_TARGETS), chosen),
            ((batches.REJECTED_IDS, batches.REJECTED_TARGETS), rejected),
        )
        if self._references:
            found = [self._references(source, np.array([pair])) for source, pair in rows]
            arrays[batches.CHOSEN_REFERENCE] = np.concatenate([first for first, _ in found])
            arrays[batches.REJECTED_REFERENCE] = np.concatenate([second for _, second in found])
        numbers = np.array([2 * pair for _, pair in rows])
        return batches.MicroBatch(arrays, samples, places.sources, build_pieces(numbers))


class LabelledBatches(AnswerBatches):
    """Batches of answers labelled good or bad, each with a mismatched answer for the KL term.

    The mismatched answer pairs the row's prompt with the answer of the next row of the global
    batch; the last row takes the first. So it does not depend on the micro-batch size or the worker
    count.
    """

    def __init__(self, shards: TokenShards, sizes: ConversationBatching, padding: int) -> None:
        """Open labelled answers of `shards`; `padding` is the token id that fills rows up.

        Raises ConfigError if the shards hold rows of another kind, and ValueError for a global
        batch of one row, which has no next row.
        """
        check_rows(shards, "labelled")
        if sizes.global_batch < 2:
            raise ValueError(
                "global_batch: a batch of 1 row has no other answer to compare with; set it "
                "to 2 or more"
            )
        super().__init__(shards, sizes, padding, per_row=1)

    def denominators(self, step: int) -> dict[str, int]:
        """Return the number of targets and of answers in the global batch."""
        numbers = self._list_rows(step)
        tokens = sum(int(self._answers.targets(source, rows, 1).sum()) for source, rows in numbers)
        return {batches.TOKENS: tokens, batches.EXAMPLES: sum(len(rows) for _, rows in numbers)}

    def micro_batch(self, step: int, index: int) -> batches.MicroBatch:
        """Return micro-batch `index` of `step`."""
        samples, places, rows = self._choose_samples(step, index)
        after = (index + 1) % self.micro_batches(step)
        following = [
            *rows[1:],
            (rows if after == index else self._choose_samples(step, after)[2])[0],
        ]
        answers = [self._answers.read_answer(*row) for row in rows]
        others = [self._answers.read_answer(*row) for row in following]
        longest = self.settings.base_length
        mixed = [
            build_mismatched(own, other, longest)
            for own, other in zip(answers, others, strict=True)
        ]
        arrays = fill_arrays(
            self._padding,
            ((batches.IDS, batches.TARGETS), answers),
            ((batches.KL_IDS, batches.KL_TARGETS), mixed),
        )
        labels = [
            self._token_shards.read_document_values(LABEL_ARRAY, source, np.array([number]))
            for source, number in rows
        ]
        arrays[batches.LABELS] = np.concatenate(labels)
        return batches.MicroBatch(
            arrays, samples, places.sources, build_pieces(np.array([number for _, number in rows]))
        )


def build_mismatched(
    own: tuple[Integers, Integers], other: tuple[Integers, Integers], sequence_length: int
) -> tuple[Integers, Integers]:
    """Join the prompt of `own` with the answer of `other`, cut at the row's end."""
    (ids, weights), (others, of_others) = own, other
    prompt = int((weights > 0).argmax())
    answer = int((of_others > 0).argmax())
    room = sequence_length + 1 - prompt
    return (
        np.concatenate([ids[:prompt], others[answer : answer + room]]),
        np.concatenate([weights[:prompt], of_others[answer : answer + room]]),
    )


class StepBatches(AnswerBatches):
    """Batches of solutions whose steps are each labelled right or wrong."""

    def __init__(self, shards: TokenShards, sizes: ConversationBatching, padding: int) -> None:
        """Open solutions of `shards`; `padding` is the token id that fills rows up.

        Raises ConfigError if the shards hold rows of another kind.
        """
        check_rows(shards, "steps")
        super().__init__(shards, sizes, padding, per_row=1)

    def denominators(self, step: int) -> dict[str, int]:
        """Return the number of labelled steps in the global batch: the training targets."""
        numbers = self._list_rows(step)
        steps = sum(int(self._answers.targets(source, rows, 1).sum()) for source, rows in numbers)
        return {batches.TOKENS: steps, batches.STEPS: steps}

    def micro_batch(self, step: int, index: int) -> batches.MicroBatch:
        """Return micro-batch `index` of `step`."""
        samples, places, rows = self._choose_samples(step, index)
        arrays = build_step_arrays([self._answers.read_answer(*row) for row in rows], self._padding)
        return batches.MicroBatch(
            arrays, samples, places.sources, build_pieces(np.array([number for _, number in rows]))
        )


def build_step_arrays(
    solutions: Sequence[tuple[Integers, Integers]], padding: int
) -> dict[str, NDArray[Any]]:
    """Build the IDS and STEP_LABELS arrays of `solutions`, given as (ids, weights).

    Each solution is cut after its last labelled step.
    """
    lengths = [int(np.flatnonzero(weights)[-1]) + 1 for _, weights in solutions]
    ids_BT = np.full((len(solutions), max(lengths)), padding, dtype=np.int64)
    labels_BT = np.full_like(ids_BT, batches.IGNORE)
    for row, (length, (ids, weights)) in enumerate(zip(lengths, solutions, strict=True)):
        ids_BT[row, :length] = ids[:length]
        of_steps = weights[:length]
        labels_BT[row, :length] = np.where(of_steps > 0, of_steps == RIGHT_STEP, batches.IGNORE)
    return {batches.IDS: ids_BT, batches.STEP_LABELS: labels_BT}


def build_pieces(numbers: Integers) -> Integers:
    """Return the pieces array, [B, 3], of rows that hold one document each."""
    rows = np.arange(len(numbers))
    return np.stack([rows, np.zeros_like(rows), numbers], axis=1)
