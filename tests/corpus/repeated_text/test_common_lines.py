import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.corpus.repeated_text.common_lines import (
    CommonLines,
    NormalForm,
    compute_form,
    find_units,
)


def normalise_plainly(line: str) -> str:
    """Return the normal form, computed on whole strings."""
    folded = unicodedata.normalize("NFD", line.lower().replace("ς", "σ"))
    kept = []
    for character in folded:
        category = unicodedata.category(character)
        if character.isspace():
            kept.append(" ")
        elif category not in ("Mn", "Me", "Cc", "Cf") and category[0] != "P":
            kept.append("0" if category == "Nd" else character)
    return " ".join("".join(kept).split(" ")).strip() if kept else ""


def compute_key(line: str) -> int:
    units = find_units([line], CommonLines(unit="line"), NormalForm())
    return int(units.keys_U[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Read More...", "read more"),
        ("  Copyright 2019, all rights reserved.", "copyright 2024 all rights reserved\r"),
        ("Café — déjà vu!", "CAFE  DEJA VU"),
        ("cafe\u0301", "café"),
        ("« Précédent »", "precedent"),
        ("١٢ مقال", "٣٤ مقال"),
        ("ΟΔΟΣ", "οδος"),
        ("İstanbul", "istanbul"),
        ("한국어", unicodedata.normalize("NFD", "한국어")),
        ("a\u00a0b", "a  b"),
        ("co\u00adoperate", "cooperate"),
        ("it's 5", "its 9"),
    ],
)
def test_these_lines_are_the_same(one: str, other: str):
    assert compute_key(one) == compute_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("read more", "readmore"),
        ("page 1", "page 12"),
        ("a + b", "a b"),
        ("x²", "x0"),
        ("der Maß", "der Mass"),
    ],
)
def test_these_are_not(one: str, other: str):
    assert compute_key(one) != compute_key(other)


@pytest.mark.parametrize(
    ("line", "length"), [("", 0), (" -- ", 0), (" A, b ", 3), ("한", 3), ("11 . 22", 5)]
)
def test_the_length_counts_the_normal_form(line: str, length: int):
    units = find_units([line + "\n"], CommonLines(), NormalForm())
    assert units.lengths_U.tolist() == [length]


@given(st.lists(st.text(st.sampled_from("aAé .,\t1٣한\u0301\u200b–ς"), max_size=6), max_size=12))
def test_keys_are_equal_where_normal_forms_are(lines: list[str]):
    units = find_units(lines, CommonLines(), NormalForm())
    lines = [line for line in lines if line]  # an empty text has no line
    forms = [" ".join(normalise_plainly(line).split()) for line in lines]
    keys = units.keys_U.tolist()
    assert len(keys) == len(forms)
    assert len(set(zip(keys, forms, strict=True))) == len(set(keys)) == len(set(forms))
    assert units.lengths_U.tolist() == list(map(len, forms))


@settings(max_examples=50)
@given(st.text(max_size=20))
def test_a_normal_form_is_built_character_by_character(text: str):
    forms = "".join(map(compute_form, text))
    assert sorted(forms.replace(" ", "")) == sorted(normalise_plainly(text).replace(" ", ""))


def test_cached_characters_do_not_change_results():
    learnt = NormalForm()
    find_units(["한国é\U0001f600"], CommonLines(), learnt)
    texts = ["é 한 x", "国\U0001f600"]
    fresh = find_units(texts, CommonLines(), NormalForm())
    assert np.array_equal(find_units(texts, CommonLines(), learnt).keys_U, fresh.keys_U)
