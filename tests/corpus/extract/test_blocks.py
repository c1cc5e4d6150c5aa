import io
from pathlib import Path

import numpy as np
import pytest

from trainrig.corpus.extract import block_trees
from trainrig.corpus.extract.block_features import FEATURES, compute_features
from trainrig.corpus.extract.block_scores import measure_agreement
from trainrig.corpus.extract.block_trees import LEAF, Trees
from trainrig.corpus.extract.page_blocks import COLUMNS, FIRST_TOPIC, TOPICS, WIDTH, PageBlocks
from trainrig.corpus.page_walk.page_text import H1, ITEM, PARAGRAPH, ROW
from trainrig.corpus.page_walk.page_walk import walk_page

NAMES = (*COLUMNS, *TOPICS)


def compute_numbers(html: str, title: str = "") -> list[dict[str, int]]:
    """Return the non-zero numbers of each block."""
    found = PageBlocks(walk_page(html.encode(), stops=False), title).numbers.tolist()
    return [
        {name: number for name, number in zip(NAMES, row, strict=True) if number} for row in found
    ]


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("plain", {"characters": 5, "words": 1}),
        ("<p>A &amp; b.</p>", {"kind": PARAGRAPH, "characters": 6, "words": 2, "capitals": 1}
         | {"opens": 1, "gap": 1, "depth": 1, "ends_sentence": 1, "stops": 1}),
        ('<h2>Über <a href="/x>y">uns</a></h2>', {"kind": H1 + 1, "characters": 8, "words": 2}
         | {"capitals": 1, "opens": 1, "gap": 1, "depth": 1, "links": 1, "link_characters": 3}),
        ("<ul>\n<li>1999, 12:30:</li></ul>", {"kind": ITEM, "characters": 12, "words": 3}
         | {"digits": 8, "dates": 2, "gap": 1, "opens": 1, "list_depth": 1, "stops": 1}
         | {"ends_colon": 1, "depth": 2, "marker": 1}),
        ("<table><tr><td>a</td><td>b | c...</td></tr></table>", {"kind": ROW, "characters": 10}
         | {"words": 3, "stops": 3, "ends_sentence": 1, "ends_ellipsis": 1, "separators": 1}
         | {"gap": 1, "opens": 1, "depth": 3}),
        ("„Да…“", {"characters": 5, "words": 1, "ends_sentence": 1}),
    ],
)  # fmt: skip
def test_the_numbers_of_a_block(html: str, expected: dict[str, int]):
    assert compute_numbers(html) == [expected]


def test_a_line_break_ends_a_block_and_preformatted_text_is_one():
    html = "<p>one<br>\ntwo</p><pre>three\nfour\n</pre>\nfive"
    blocks = PageBlocks(walk_page(html.encode(), stops=False), "")
    texts = [bytes(blocks.text[start:end]) for start, end in blocks.spans]
    assert texts == [b"one", b"two", b"three\nfour", b"five"]
    assert [block.get("gap", 0) for block in compute_numbers(html)] == [1, 0, 1, 1]


def test_words_of_topics_and_of_the_title_are_counted_in_any_case():
    (found,) = compute_numbers("SHARE the Mill on Facebook", title="The old mill")
    assert (found["share"], found["title_words"]) == (2, 2)


def test_a_block_that_comes_again_has_the_same_digest():
    blocks = PageBlocks(walk_page(b"Read <a>more</a><br>other<br>read more!", stops=False), "")
    assert blocks.digests[0] == blocks.digests[2] != blocks.digests[1]


def test_features_of_a_block_include_its_neighbours():
    html = "\n".join(f"<p>{'word ' * number}end.</p>" for number in range(1, 40))
    found = compute_features(PageBlocks(walk_page(html.encode(), stops=False), ""))
    assert found.shape == (39, FEATURES)
    middle = found[20]
    characters = [row["characters"] for row in compute_numbers(html)]
    # There are three neighbours on each side, of five numbers each. The second number is the
    # characters.
    assert middle[WIDTH + 4 : WIDTH + 34 : 5].tolist() == characters[17:20] + characters[21:24]
    assert found[0, WIDTH + 3] == -1  # the first block has no neighbour before it


def test_a_page_without_blocks_has_no_features():
    assert compute_features(PageBlocks(walk_page(b"\n<p></p>\n", stops=False), "")).shape == (
        0,
        FEATURES,
    )


def test_the_trees_sum_the_leaves_of_a_row():
    two = Trees.of(
        np.array([0, 3], np.int32),
        np.array([1, LEAF, LEAF, LEAF], np.int16),
        np.array([5, -10, 20, 300], np.int32),
        np.array([1, 0, 0, 0], np.int32),
    )
    rows = np.array([[9, 5], [0, 6]], np.int32)
    assert two.compute_odds(rows).tolist() == [290, 320]


def test_tests_of_all_trees_together_equal_a_descent_of_each():
    packed = (Path(block_trees.__file__).parent / "block_trees.npz").read_bytes()
    with np.load(io.BytesIO(packed)) as packed_file:  # unpacks an array on each access
        file = {name: packed_file[name].tolist() for name in packed_file.files}
    dice = np.random.default_rng(1)
    rows = dice.integers(-1, 200, (150, FEATURES)).astype(np.int32)
    expected = []
    for row in rows:
        total = 0
        for node in file["roots"]:
            while file["features"][node] != LEAF:
                node = file["left"][node] + (row[file["features"][node]] > file["values"][node])
            total += file["values"][node]
        expected.append(total)
    assert block_trees.load().compute_odds(rows).tolist() == expected
    assert len(set(expected)) > 40


def test_the_shipped_trees_use_existing_features():
    shipped = block_trees.load()
    assert shipped.features.max() < FEATURES
    assert len(shipped.bounds) == (shipped.leaves != 0).sum() - len(shipped.leaves)
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
