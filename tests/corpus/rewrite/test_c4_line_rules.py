"""C4's line rules, compared with a reference that follows its authors' code.

Other references are datatrove, where it is installed, and cases by hand.
"""

import json
import os
import re
import subprocess
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.rewrite.c4_line_rules import C4Lines
from trainrig.corpus.signals.text_arrays import build_batch

pieces = st.sampled_from(
    [
        *("the cat sat on a mat", "one two three", "word", "x" * 1001, " ", "\n", "\r\n", "\u2028"),
        *(
            ".",
            "...",
            "?",
            "!",
            '"',
            "'",
            "…",
            "[1]",
            "[",
            "]",
            "[edit]",
            "[citation needed]",
            "[]",
            "[٣]",
        ),
        *("JavaScript", "java", "script", "{", "lorem ipsum", "Lorem", "use of cookies", "İ", "σ"),
        *("Terms of Use", "privacy", " policy", "cookie"),
    ]
)
texts = st.lists(pieces, max_size=20).map("".join)


def clean_by_reference(text: str, reading: str, ended: bool = True) -> tuple[str, Counter[str]]:
    """Return the cleaned text and the counts, applying each rule in turn to each line."""
    tfds = reading == "tfds"
    kept = []
    counts = Counter()
    for line in text.splitlines():
        line = line.strip()
        raw_words = line.split()
        if any(len(word) > 1000 for word in raw_words):
            counts["c4_long_words"] += 1
            continue
        line, cut = re.subn(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line)
        counts["c4_citations"] += cut
        words = line.split() if tfds else raw_words
        marks = ".?!" + '"' + ("" if tfds else "'")
        lower = line.lower()
        if ended and (line[-1:] not in list(marks) or line[-3:] == "..."):
            counts["c4_unended"] += 1
            continue
        if len(words) < (5 if tfds else 3):
            counts["c4_few_words"] += 1
            continue
        counts["c4_lorem_ipsum"] += "lorem ipsum" in lower
        if "javascript" in lower:
            counts["c4_javascript"] += 1
            continue
        counts["c4_curly_brackets"] += "{" in line
        policies = r"terms of use|(privacy|cookie) policy|uses? cookies|use of cookies"
        if re.search(policies, lower):
            counts["c4_policy"] += 1
            continue
        kept.append(line)
    return "\n".join(kept).strip(), +counts


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("reading", ["tfds", "datatrove"])
@given(texts)
@example("one two java[1]script five six.")
@example("one two use of coo\u212aies six.")  # contains the kelvin sign
@example("[1] one two three four five.\nAs was shown in the end. [1]")
@example('one [1] two [2] three "')
def test_lines_are_dropped_as_in_the_published_code(reading: str, ended: bool, text: str):
    rules = C4Lines(reading=reading, terminal_punctuation=ended)
    left, counts = rules.apply(text, "en")
    assert (left, +Counter(counts)) == clean_by_reference(text, reading, ended)
    assert tuple(counts) == rules.columns


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("This one stays as it is.", None),
        ("A heading without an end", "c4_unended"),
        ("This one trails off in...", "c4_unended"),
        ("He said so and meant it.'", "c4_unended"),
        ("Only four words here.", "c4_few_words"),
        ("Three words [1] [2] here.", "c4_few_words"),
        ("Please enable JavaScript in your browser.", "c4_javascript"),
        ("This site uses cookies to be nice.", "c4_policy"),
        (f"one two three four {'x' * 1001}.", "c4_long_words"),
    ],
)
def test_each_line_is_dropped_by_its_rule(line: str, column: str | None):
    left, counts = C4Lines().apply(line, "en")
    assert left == ("" if column else line)
    assert {rule for rule, count in counts.items() if count} - {"c4_citations"} == (
        {column} if column else set()
    )


@pytest.mark.parametrize(
    ("line", "tfds", "datatrove"),
    [
        ("Only four words here.", False, True),
        ("It is so, he said to her'", False, True),
        ("Two [1] words.", False, True),  # three words before the citation is cut
    ],
)
def test_the_two_readings_differ(line: str, tfds: bool, datatrove: bool):
    kept = [
        bool(C4Lines(reading=reading).apply(line, "en")[0]) for reading in ("tfds", "datatrove")
    ]
    assert kept == [tfds, datatrove]


def test_every_rule_can_be_turned_off():
    text = f"JavaScript\nuse of cookies\nfoo [1]\n{'x' * 1001}"
    off = C4Lines(
        max_word_length=2000,
        citations=False,
        terminal_punctuation=False,
        min_words=0,
        javascript=False,
        policy=False,
    )
    assert off.apply(text, "en") == (text, dict.fromkeys(C4Lines.columns, 0))


@pytest.mark.parametrize("text", ["[", "[1", "[]", "a ", "[edit", "{", "javascript "])
def test_no_text_takes_more_than_linear_time(text: str):
    C4Lines().apply(f"{text * 200_000}.", "en")


PEER = """
import json, sys
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter
for line in sys.stdin:
    text, ended = json.loads(line)
    rules = C4QualityFilter(filter_no_terminal_punct=ended, min_num_sentences=-1)
    document = Document(text=text, id="0")
    kept = rules.filter(document)
    print(json.dumps([kept is True, document.text]))
"""


@pytest.mark.data
def test_lines_of_real_pages_are_dropped_as_by_datatrove(real_texts: list[str]):
    python = os.environ.get("TRAINRIG_PEERS")  # an interpreter that has datatrove
    if not python:
        pytest.skip("TRAINRIG_PEERS is not set")
    cases = [(text, ended) for text in real_texts for ended in (True, False)]
    answers = subprocess.run(
        [python, "-c", PEER],
        input="".join(json.dumps(case) + "\n" for case in cases),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    kept = 0
    for (text, ended), answer in zip(cases, map(json.loads, answers), strict=True):
        rules = C4Lines(reading="datatrove", terminal_punctuation=ended)
        left, counts = rules.apply(text, "en")
        dropped = counts["c4_lorem_ipsum"] + counts["c4_curly_brackets"] > 0
        assert answer[0] is not dropped
        if not dropped:
            assert left == answer[1]
            kept += 1
    assert kept > len(cases) / 4


@given(st.lists(texts, max_size=4))
def test_many_texts_are_cut_as_one_by_one(some: list[str]):
    rules = C4Lines(reading="datatrove", terminal_punctuation=False)
    left, counts = rules.apply_to_batch(build_batch(some))
    expected = build_batch([rules.apply(text, "en")[0] for text in some])
    for ours, theirs in zip(left, expected, strict=True):
        assert ours.tolist() == theirs.tolist()  # type: ignore[attr-defined]
    for number, text in enumerate(some):
        assert counts[:, number].tolist() == list(rules.apply(text, "en")[1].values())
