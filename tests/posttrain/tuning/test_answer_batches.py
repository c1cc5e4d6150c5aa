"""Batches of pairs and of labelled answers."""

import numpy as np
import pytest

from trainrig.errors import ConfigError
from trainrig.posttrain.tuning.answer_batches import LabelledBatches, PairBatches
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching
from trainrig.tokens.batches import (
    CHOSEN_IDS,
    CHOSEN_REFERENCE,
    CHOSEN_TARGETS,
    CHOSEN_TOKENS,
    EXAMPLES,
    IDS,
    IGNORE,
    KL_IDS,
    KL_TARGETS,
    LABELS,
    PAIRS,
    REJECTED_IDS,
    REJECTED_REFERENCE,
    REJECTED_TARGETS,
    TARGETS,
    TOKENS,
)
from trainrig.tokens.shards.token_shards import TokenShards

PAIR_ROWS = [
    {"prompt": f"is it {n}", "chosen": f"yes {'and ' * n}", "rejected": f"no {n}"} for n in range(6)
]
LABEL_ROWS = [
    {"prompt": f"is it {n}", "completion": f"yes {'or ' * n}", "label": n % 3 == 0}
    for n in range(6)
]


def list_sizes(**changes):
    given = {"sequence_length": 64, "global_batch": 6, "micro_batch": 2} | changes
    return ConversationBatching(**given)


def shards(manifest_folder):
    return TokenShards.open(f"{manifest_folder}/train")


def decode_row(encoder, ids, targets):
    """Return the text of a row and of its targets."""
    told = targets != IGNORE
    last = int(np.flatnonzero(told)[-1])
    return encoder.decode(ids[: last + 1].tolist()), encoder.decode(targets[told].tolist())


def test_pairs_are_read_back_as_they_were_written(encode_rows, encoder, tmp_path):
    made = encode_rows(PAIR_ROWS, rows="pairs")
    assert (made.counts["train_pairs"], made.counts["quarantined"]) == (6, {})
    batches = PairBatches(shards(tmp_path / "encoded"), list_sizes(), padding=1)
    seen = set()
    tokens = 0
    for micro in (batches.micro_batch(0, index) for index in range(3)):
        assert micro.arrays[CHOSEN_IDS].shape == micro.arrays[REJECTED_IDS].shape
        for row in range(2):
            chosen, yes = decode_row(
                encoder, micro.arrays[CHOSEN_IDS][row], micro.arrays[CHOSEN_TARGETS][row]
            )
            rejected, no = decode_row(
                encoder, micro.arrays[REJECTED_IDS][row], micro.arrays[REJECTED_TARGETS][row]
            )
            prompt = chosen.split("<|assistant|>")[0]
            assert rejected.split("<|assistant|>")[0] == prompt
            number = int(no.split()[1].removesuffix("<|end_of_turn|>"))
            assert prompt == f"<|end_of_text|><|user|>is it {number}<|end_of_turn|>"
            assert yes == f"yes {'and ' * number}<|end_of_turn|>" and no.startswith("no ")
            seen.add(number)
        for name in (CHOSEN_TARGETS, REJECTED_TARGETS):
            tokens += int((micro.arrays[name] != IGNORE).sum())
    assert seen == set(range(6))
    denominators = batches.denominators(0)
    assert (denominators[PAIRS], denominators[TOKENS]) == (6, tokens)
    whole = [batches.micro_batch(0, index).arrays[CHOSEN_TARGETS] for index in range(3)]
    assert denominators[CHOSEN_TOKENS] == sum(int((targets != IGNORE).sum()) for targets in whole)


def test_references_come_with_the_pairs_they_are_of(encode_rows, tmp_path):
    encode_rows(PAIR_ROWS, rows="pairs")
    opened = shards(tmp_path / "encoded")
    batches = PairBatches(opened, list_sizes(), 1, lambda source, n: (n + 0.5, n + 0.25))
    micro = batches.micro_batch(1, 2)
    np.testing.assert_array_equal(micro.arrays[CHOSEN_REFERENCE], micro.pieces[:, 2] // 2 + 0.5)
    np.testing.assert_array_equal(micro.arrays[REJECTED_REFERENCE], micro.pieces[:, 2] // 2 + 0.25)


def test_labelled_answers_are_paired_with_the_answer_of_the_next_row(
    encode_rows, encoder, tmp_path
):
    encode_rows(LABEL_ROWS, rows="labelled")
    opened = shards(tmp_path / "encoded")
    by_size = [LabelledBatches(opened, list_sizes(micro_batch=size), 1) for size in (1, 2, 3, 6)]
    told = []
    for batches in by_size:
        rows = []
        for step in range(2):
            for micro in batches.at(step):
                for row in range(len(micro.samples)):
                    a = micro.arrays
                    _, said = decode_row(encoder, a[IDS][row], a[TARGETS][row])
                    asked, other = decode_row(encoder, a[KL_IDS][row], a[KL_TARGETS][row])
                    number = said.count("or ")
                    assert a[LABELS][row] == (number % 3 == 0)
                    assert f"is it {number}<" in asked and other != said
                    rows.append((said, other))
        told.append(rows)
    assert all(rows == told[0] for rows in told)
    for first in (0, 6):
        epoch = told[0][first : first + 6]
        assert [other for _, other in epoch] == [said for said, _ in [*epoch[1:], epoch[0]]]
    assert by_size[0].denominators(0)[EXAMPLES] == 6


def test_rows_of_another_kind_are_refused(encode_rows, tmp_path):
    encode_rows(PAIR_ROWS, rows="pairs")
    with pytest.raises(ConfigError, match=r"holds pairs.*labelled"):
        LabelledBatches(shards(tmp_path / "encoded"), list_sizes(), 1)
