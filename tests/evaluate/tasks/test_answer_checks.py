"""Verdicts on written answers, for cases made by hand."""

import pytest

from trainrig.errors import DataError
from trainrig.evaluate.tasks.answer_checks import (
    cut_at,
    extract_answer,
    find_last_boxed,
    is_right,
    score_answer,
)
from trainrig.evaluate.tasks.ifeval_instructions import INSTRUCTIONS, is_followed
from trainrig.evaluate.tasks.task_definition import (
    ExactMatch,
    InstructionMatch,
    MathsMatch,
    NumericMatch,
    PatternMatch,
    TokenF1,
)

LOOSE = ExactMatch(ignore_case=True, ignore_punctuation=True)


@pytest.mark.parametrize(
    ("check", "given", "target", "right"),
    [
        (ExactMatch(), " Paris ", "Paris", True),
        (ExactMatch(), "paris", "Paris", False),
        (LOOSE, "paris.", "Paris", True),
        (NumericMatch(), "$1,234.00", "1234", True),
        (NumericMatch(), "18.", "18", True),
        (NumericMatch(), "about -7 apples", "-7", True),
        (NumericMatch(), "1235", "1234", False),
        (NumericMatch(tolerance=1.0), "1235", "1234", True),
        (NumericMatch(), "none", "1234", False),
        (NumericMatch(), "0.1", "0.10", True),
        (PatternMatch(), "it is 42 now", r"\b4\d\b", True),
        (PatternMatch(whole=True), "it is 42 now", r"\b4\d\b", False),
        (MathsMatch(), r"so $\frac12$", r"\frac{1}{2}", True),
        (MathsMatch(), r"\boxed{0.5}", r"\dfrac{1}{2}", True),
        (MathsMatch(), r"\boxed{x = 3}", "3", True),
        (MathsMatch(), r"\boxed{1/2}", r"\frac{1}{2}", True),
        (MathsMatch(), r"\boxed{\left(3, 4\right)}", "(3,4)", True),
        (MathsMatch(), r"\boxed{\sqrt 8}", r"\sqrt{8}", True),
        (MathsMatch(), r"\boxed{5\text{ cm}}", "5", True),
        (MathsMatch(), r"\boxed{3}", "4", False),
    ],
)
def test_an_answer_is_right(check, given, target, right):
    assert is_right(check, given, target) is right


def test_words_that_overlap_count_as_squad_counts_them():
    found = score_answer(TokenF1(), "The cat sat", ["a cat sat down", "dog"])
    assert found == {"f1": pytest.approx(2 * 2 / (2 + 3)), "exact_match": 0.0}
    assert score_answer(TokenF1(), "the Cat!", ["cat"]) == {"f1": 1.0, "exact_match": 1.0}
    assert score_answer(TokenF1(), None, ["cat"])["f1"] == 0.0


def test_the_part_that_is_checked_is_cut_out():
    text = "5 - 3 = 2\n#### 2\n\nQuestion: next"
    assert cut_at(text, ["Question:", "\n\n"]) == "5 - 3 = 2\n#### 2"
    assert extract_answer(text, r"#### (-?[0-9.,]+)", "first") == "2"
    assert (
        extract_answer(text, r"\d", "last") == "2" and extract_answer(text, r"\d", "first") == "5"
    )
    assert extract_answer(text, r"none", "first") is None
    assert find_last_boxed(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert find_last_boxed("no box") == "no box" and find_last_boxed(r"\boxed{1") == r"\boxed{1"


FOLLOWED = {
    "keywords:existence": ({"keywords": ["Sea"]}, "the sea", "the land"),
    "keywords:frequency": ({"keyword": "a", "frequency": 2, "relation": "less than"}, "a", "a a"),
    "keywords:forbidden_words": ({"forbidden_words": ["sea"]}, "seaside", "the sea."),
    "keywords:letter_frequency": (
        {"letter": "e", "let_frequency": 2, "let_relation": "at least"},
        "Eve",
        "be",
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 2, "relation": "at least"},
        "One. Two!",
        "One, two",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a b"),
    "length_constraints:number_words": ({"num_words": 3, "relation": "at least"}, "a b c", "a b"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "a\n\nThen, b",
        "a\n\nb",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 1}, "[name]", "name"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "x\nP.S. y", "x y"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a"),
    "detectable_format:constrained_response": ({}, "My answer is yes.", "Yes."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*a* **b**", "*a*"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "{a}"),
    "detectable_format:title": ({}, "<<T>>\nx", "T"),
    "combination:two_responses": ({}, "a\n******\nb", "a\n******\na"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say it"}, "say it. Yes", "Yes"),
    "startend:end_checker": ({"end_phrase": "Bye."}, "so\nbye.", "bye. so"),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 1, "capital_relation": "at least"},
        "NO way",
        "no way",
    ),
    "change_case:english_capital": ({}, "THIS IS WHAT THEY SAID OF IT", "This is what they said"),
    "change_case:english_lowercase": ({}, "this is what they said of it", "This is what they said"),
    "language:response_language": (
        {"language": "de"},
        "Das ist ein schöner Tag",
        "It is a nice day",
    ),
    "punctuation:no_comma": ({}, "a b", "a, b"),
    "startend:quotation": ({}, '"a"', "a"),
}


@pytest.mark.parametrize("name", sorted(INSTRUCTIONS))
def test_an_instruction_is_followed_or_not(name):
    arguments, good, bad = FOLLOWED[name]
    assert is_followed({"id": name, "arguments": arguments}, good)
    assert not is_followed({"id": name, "arguments": arguments}, bad)
    assert not is_followed({"id": name, "arguments": arguments}, " \n")


def test_an_introduction_and_bold_type_are_forgiven_loosely():
    lower = {"id": "change_case:english_lowercase", "arguments": {}}
    comma = {"id": "punctuation:no_comma", "arguments": None}
    found = score_answer(InstructionMatch(), "Sure!\nthis is what they said", [], [lower, comma])
    assert found == {
        "prompt_strict": 0.0,
        "prompt_loose": 1.0,
        "instruction_strict": 0.5,
        "instruction_loose": 1.0,
    }
    with pytest.raises(DataError, match="instruction 'none' is unknown"):
        is_followed({"id": "none"}, "x")
    with pytest.raises(DataError, match="the argument 'num_words' is missing"):
        is_followed({"id": "length_constraints:number_words"}, "x")
