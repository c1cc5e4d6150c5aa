import numpy as np
import pytest

from trainrig.corpus.extract.block_scores import ScoredBlocks, vote
from trainrig.corpus.extract.extractors import Favour
from trainrig.corpus.extract.page_blocks import PageBlocks
from trainrig.corpus.page_walk.page_walk import walk_page

# Four blocks of equal length, each of more than three words.
LINES = ["ant apple axe arch", "bee bread bow bell", "cat corn cup coat", "dog dill drum door"]
LARGE = 60_000  # log-odds that no votes can outweigh


def make_scored_blocks(lines: list[str], odds: list[int]) -> ScoredBlocks:
    page = "".join(f"<p>{line}</p>\n" for line in lines).encode()
    return ScoredBlocks(PageBlocks(walk_page(page, stops=False), ""), np.array(odds, np.int32))


def vote_on(judged: ScoredBlocks, precision: str, balance: str = "") -> tuple[str, list[str]]:
    """Return the first letters of the kept blocks, and trafilatura's modes that were used."""
    asked = []

    def ask(favour: Favour) -> str:
        asked.append(favour)
        return {"precision": precision, "balance": balance}[favour]

    text = vote(judged, ask).format_text(bullets=True)
    return "".join(line[0] for line in text.split("\n") if line), asked


def lines(letters: str) -> str:
    return "\n".join(line for line in LINES if line[0] in letters)


def test_where_trees_and_trafilatura_agree_it_is_called_once():
    judged = make_scored_blocks(LINES, [LARGE, LARGE, -LARGE, -LARGE])
    assert vote_on(judged, lines("ab")) == ("ab", ["precision"])


def test_where_the_trees_are_uncertain_trafilatura_decides():
    judged = make_scored_blocks(LINES, [1, -1, 1, -1])
    assert vote_on(judged, lines("ad"), lines("ad"))[0] == "ad"


def test_where_trafilaturas_two_answers_differ_the_trees_decide():
    judged = make_scored_blocks(LINES, [1000, -1000, 1000, -1000])
    assert vote_on(judged, lines("ab"), lines("cd")) == ("ac", ["precision", "balance"])


def test_neither_side_alone_keeps_a_block_that_the_other_surely_drops():
    judged = make_scored_blocks(LINES, [LARGE, LARGE, -LARGE, -LARGE])
    assert vote_on(judged, lines("bc"), lines("bc"))[0] == "b"


@pytest.mark.parametrize("answers", [("", ""), ("", "abcd"), ("abcd", "")])
def test_an_answer_without_a_text_does_not_count(answers: tuple[str, str]):
    judged = make_scored_blocks(LINES, [-1, -1, -LARGE, 1])
    expected = "abd" if any(answers) else "d"
    assert vote_on(judged, *map(lines, answers))[0] == expected


def test_a_page_without_blocks_has_no_text():
    nothing = make_scored_blocks([], [])
    assert vote_on(nothing, lines("a"))[0] == ""
