import io
from pathlib import Path

import numpy as np
import pytest

from trainrig.corpus.extract import block_trees
from trainrig.corpus.extract.block_features import FEATURES, compute_features
from trainrig.corpus.extract.block_scores import measure_agreement
from trainrig.corpus.extract.block_trees import LEAF, Trees
from trainrig.corpus.extract.page_blocks import COLUMNS, FIRST_TOPIC, TOPICS, WIDTH, PageBlocks

NAMES = (*COLUMNS, *TOPICS)


def compute_numbers(html: str, title: str = "") -> list[dict[str, int]]:
    """Return the non-zero numbers of each block."""
    found = PageBlocks(html.encode(), title).numbers.tolist()
    return [
        {name: number for name, number in zip(NAMES, row, strict=True) if number} for row in found
    ]


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("plain", {"characters": 5, "words": 1}),
        ("<p>A &amp; b.</p>", {"kind": 1, "characters": 7, "words": 2, "capitals": 1, "opens": 1}
         | {"ends_sentence": 1, "stops": 1}),
        ('<h2>Über <a href="/x>y">uns</a></h2>', {"kind": 3, "characters": 9, "words": 2}
         | {"capitals": 1, "opens": 1, "links": 1, "link_characters": 3}),
        ("<ul>\n<li>1999, 12:30:</li>", {"kind": 6, "characters": 13, "words": 3, "digits": 8}
         | {"dates": 2, "gap": 1, "opens": 1, "list_depth": 1, "stops": 1, "ends_colon": 1}),
        ("a\t\tb | c...", {"kind": 8, "characters": 10, "words": 3, "stops": 3}
         | {"ends_sentence": 1, "ends_ellipsis": 1, "separators": 1}),
        ("„Да…“", {"characters": 5, "words": 1, "ends_sentence": 1}),
    ],
)  # fmt: skip
def test_the_numbers_of_a_block(html: str, expected: dict[str, int]):
    # A tag other than <a> counts as white space, at the end of a block too.
    assert compute_numbers(html) == [expected]


def test_lines_are_blocks_and_preformatted_text_is_one():
    html = "<p>one<br>\ntwo</p>\n\n\n<pre>three\nfour\n</pre>\nfive"
    blocks = PageBlocks(html.encode(), "")
    texts = [html[start:end] for start, end in blocks.spans]
    assert texts == ["<p>one<br>", "two</p>", "<pre>three\nfour\n</pre>", "five"]
    assert [block.get("gap", 0) for block in compute_numbers(html)] == [0, 0, 2, 0]
    assert [block.get("kind", 0) for block in compute_numbers(html)] == [1, 1, 7, 0]


def test_words_of_topics_and_of_the_title_are_counted_in_any_case():
    (found,) = compute_numbers("SHARE the Mill on Facebook", title="The old mill")
    assert (found["share"], found["title_words"]) == (2, 2)


def test_a_block_that_comes_again_has_the_same_digest():
    blocks = PageBlocks(b"Read <a>more</a>\nother\nread more!\n", "")
    assert blocks.digests[0] == blocks.digests[2] != blocks.digests[1]


def test_features_of_a_block_include_its_neighbours():
    html = "\n".join(f"<p>{'word ' * number}end.</p>" for number in range(1, 40))
    found = compute_features(PageBlocks(html.encode(), ""))
    assert found.shape == (39, FEATURES)
    middle = found[20]
    characters = [row["characters"] for row in compute_numbers(html)]
    # There are three neighbours on each side, of five numbers each. The second number is the
    # characters.
    assert middle[WIDTH + 4 : WIDTH + 34 : 5].tolist() == characters[17:20] + characters[21:24]
    assert found[0, WIDTH + 3] == -1  # the first block has no neighbour before it


def test_a_page_without_blocks_has_no_features():
    assert compute_features(PageBlocks(b"\n<p></p>\n", "")).shape == (0, FEATURES)


def test_the_trees_sum_the_leaves_of_a_row():
    two = Trees.of(
        np.array([0, 3], np.int32),
        np.array([1, LEAF, LEAF, LEAF], np.int16),
        np.array([5, -10, 20, 300], np.int32),
        np.array([1, 0, 0, 0], np.int32),
    )
    rows = np.array([[9, 5], [0, 6]], np.int32)
    assert two.compute_odds(rows).tolist() == [290, 320]


@pytest.mark.parametrize("name", ["main", "whole"])
def test_vectorised_descent_of_trees_equals_one_by_one(name: block_trees.Name):
    packed = (Path(block_trees.__file__).parent / f"block_trees_{name}.npz").read_bytes()
    with np.load(io.BytesIO(packed)) as packed_file:  # unpacks an array on each access
        file = {name: packed_file[name].tolist() for name in packed_file.files}
    dice = np.random.default_rng(1)
    rows = dice.integers(-1, 200, (50, FEATURES)).astype(np.int32)
    expected = []
    for row in rows:
        total = 0
        for node in file["roots"]:
            while file["features"][node] != LEAF:
                node = file["left"][node] + (row[file["features"][node]] > file["values"][node])
            total += file["values"][node]
        expected.append(total)
    assert block_trees.load(name).compute_odds(rows).tolist() == expected
    assert len(set(expected)) > 40


@pytest.mark.parametrize("name", ["main", "whole"])
def test_the_shipped_trees_use_existing_features(name: block_trees.Name):
    shipped = block_trees.load(name)
    assert shipped.features.max() < FEATURES
    assert (shipped.left > 0)[shipped.leaves == 0].all()
    assert FIRST_TOPIC < WIDTH < FEATURES


@pytest.mark.parametrize(
    ("block", "share"),
    [
        ("one two three four five", 1000),
        ("one two three nine ten", 333),
        ("six seven", 1000),  # a line
        ("one two", 0),  # not a whole line
        ("", 0),
    ],
)
def test_shares_of_a_block_in_another_text(block: str, share: int):
    assert measure_agreement([block], "one two three, four five\nsix seven").tolist() == [share]
