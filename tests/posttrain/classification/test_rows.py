"""Encoded texts and questions, against Transformers' tokenizer and by hand."""

import json

import numpy as np
import pytest
import transformers

from trainrig.errors import DataError
from trainrig.posttrain.classified_rows import settle_labels
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.tokenizers.encode import Encoder, TextPairEncoder, TooLong

TEXTS = ["the sea is grey", "Unknown ships, 1870.", "a", "the team wins by three " * 4, "[SEP] ?"]
ROWS = [
    {"text": "the sea is calm", "label": "weather"},
    {"text": "the team wins", "text_pair": "by two", "label": "sport"},
    {"text": "a ship sails", "label": "travel"},
]
BAD = [
    ({"text": "a"}, "no_label"),
    ({"text": "a", "label": None}, "no_label"),
    ({"text": "a", "label": -1}, "no_label"),
    ({"text": " ", "label": "sport"}, "empty_text"),
    ({"label": "sport"}, "missing_field"),
    ({"text": 3, "label": "sport"}, "not_text"),
    ({"text": "a", "label": 0.5}, "bad_label"),
    ({"text": "a", "label": "sports"}, "unknown_label"),
    ({"text": "a", "label": 3}, "unknown_label"),
    ({"text": "the " * 40, "label": "sport"}, "too_long"),
    ("{", "not_json"),
]


@pytest.mark.parametrize("longest", [48, 12])
def test_texts_and_pairs_are_what_transformers_encodes(bert, longest):
    theirs = transformers.AutoTokenizer.from_pretrained(bert)
    ours = TextPairEncoder(Encoder.load(bert), longest, "longest_first")
    for first in TEXTS:
        for second in (None, *TEXTS):
            wanted = theirs(
                first, second, truncation=True, max_length=longest, split_special_tokens=True
            )
            found = ours.encode(first, second)
            assert found.ids.tolist() == wanted["input_ids"]
            assert found.segments.tolist() == wanted["token_type_ids"]
    with pytest.raises(TooLong):
        TextPairEncoder(Encoder.load(bert), 12, None).encode(TEXTS[3])


def test_a_tokenizer_of_ours_has_an_end_around_each_text(encoder):
    pairs = TextPairEncoder(encoder, 64, None)
    end = encoder.end_of_text
    first, second = (ids.tolist() for ids in encoder.encode_batch(["the sea", "is grey"]))
    assert pairs.encode("the sea").ids.tolist() == [end, *first, end]
    found = pairs.encode("the sea", "is grey")
    assert found.ids.tolist() == [end, *first, end, *second, end]
    assert found.segments.tolist() == [0] * (2 + len(first)) + [1] * (1 + len(second))


def test_labels_that_rows_have_are_ordered_and_written(encode, tmp_path):
    found = encode(ROWS)
    assert found.counts["labels"] == ["sport", "travel", "weather"]
    shards = TokenShards.open(f"{tmp_path}/encoded/train")
    assert shards.rows == "classified"
    assert shards.read_document_values("classes", "s", np.arange(3)).tolist() == [2, 0, 1]
    weights = np.empty(shards.tokens("s"), dtype=np.int64)
    shards.read_weights("s", 0, weights)
    begin, end = shards.find_document_starts("s", np.array([1, 2])).tolist()
    assert weights[begin:end].tolist() == [1, 1, 1, 1, 1, 3, 3, 3]
    numbers = encode([{"text": "a", "label": n} for n in (10, 2, 10)], "numbers")
    assert numbers.counts["labels"] == ["2", "10"]
    for name, labels in (("given", (2, 0, 1)), ("named", ("weather", "sport", "travel"))):
        rows = [row | {"label": label} for row, label in zip(ROWS, labels, strict=True)]
        encode(rows, name, labels=("sport", "travel", "weather"))
        there = TokenShards.open(f"{tmp_path}/{name}/train")
        assert there.read_document_values("classes", "s", np.arange(3)).tolist() == [2, 0, 1]


def test_bad_rows_are_in_quarantine_with_file_and_place(encode, tmp_path):
    labels = ("sport", "travel", "weather")
    found = encode([*ROWS, *(row for row, _ in BAD)], labels=labels)
    lines = (tmp_path / "encoded/quarantine/rows-00000.jsonl").read_text().splitlines()
    bad = [json.loads(line) for line in lines]
    assert [row["reason"] for row in bad] == [reason for _, reason in BAD]
    assert all(row["file"].endswith("encoded.jsonl") and row["place"] > 0 for row in bad)
    assert found.counts["train_classified"] == 3
    cut = encode([*ROWS, BAD[-2][0]], "cut", labels=labels, too_long="cut")
    assert cut.counts["train_classified"] == 4 and not cut.counts["quarantined"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": ("a",)}, "two or more different"),
        ({"labels": ("a", "a")}, "two or more different"),
        ({"rows": "pairs", "labels": ("a", "b")}, 'labels: rows = "pairs"'),
        ({"too_long": "drop_turns"}, "use \"refuse\" or \"cut\""),
        ({"rows": "pairs", "too_long": "cut"}, "use \"refuse\" or \"drop_turns\""),
        ({"template": "x"}, "are for conversations"),
    ],
)  # fmt: skip
def test_settings_of_other_rows_are_refused(encode, settings, message):
    with pytest.raises(ValueError, match=message):
        encode(ROWS, **settings)


def test_labels_that_are_none_are_refused(encode):
    with pytest.raises(DataError, match="some rows have numbers"):
        encode([{"text": "a", "label": 1}, {"text": "a", "label": "b"}])
    with pytest.raises(DataError, match="only one label, 'b'"):
        encode([{"text": "a", "label": "b"}], "one")
    with pytest.raises(DataError, match="1,001 different ones"):
        settle_labels({}, {f"{n:04d}": 1 for n in range(1001)})


CONTEXT = "The harbour was built in 1870 by a team."


def make_question(text, start, asked="when was the harbour built?"):
    answers = {"text": [text] if text else [], "answer_start": [start] if text else []}
    return {"question": asked, "context": CONTEXT, "answers": answers}


def test_the_tokens_of_an_answer_are_those_that_its_characters_are_in(encode, bert, tmp_path):
    rows = [
        make_question("1870", 25),
        make_question("built in", 16),
        make_question("", 0),
        make_question(" 1870 ", 24),
    ]
    found = encode(rows, rows="questions", sequence_length=48)
    assert found.counts["train_questions"] == 4 and "labels" not in found.counts
    shards = TokenShards.open(f"{tmp_path}/encoded/train")
    encoder = Encoder.load(bert)
    said = []
    for number in range(4):
        begin, end = shards.find_document_starts("s", np.array([number, number + 1])).tolist()
        weights = np.empty(end - begin, dtype=np.int64)
        shards.read_weights("s", begin, weights)
        ids = shards.read_window("s", begin, end - begin)
        said.append(encoder.decode(ids[weights & 8 > 0]))
        assert encoder.decode(ids[weights & 4 > 0]) == "theharbourwasbuiltin1870byateam."
    assert said == ["1870", "builtin", "", "1870"]


def test_an_answer_that_is_cut_or_elsewhere_is_in_quarantine(encode, tmp_path):
    rows = [
        make_question("The", 0),
        make_question("team", 35),
        make_question("1870", 24),
        make_question("x", -1),
    ]
    found = encode(rows, rows="questions", sequence_length=16, too_long="cut")
    assert found.counts["quarantined"] == {"answer_cut": 1, "bad_label": 2}
    whole = encode(rows, "whole", rows="questions", sequence_length=48)
    assert whole.counts["train_questions"] == 2
