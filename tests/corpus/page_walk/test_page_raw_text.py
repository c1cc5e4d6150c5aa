"""The end of raw text, compared with a reading of the whole text by regular expressions."""

import re
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.page_walk.page_raw_text import find_raw_text_end
from trainrig.corpus.page_walk.page_walk import walk_page

TOKEN = re.compile(r"-->|<!--|</script(?=[\s/>])|<script(?=[\s/>])", re.IGNORECASE)
PIECES = ("<!--", "<!-->", "-->", "--", ">", "<", "<script>", "<SCRIPT ", "</script>", "</scripts>")


def find_end(text: str) -> int:
    """Return where a script ends, by the states of the HTML standard; the length if nowhere."""
    escaped = False
    inner = False
    at = 0
    while found := TOKEN.search(text, at):
        token = found.group().lower()
        at = found.end()
        if token == "-->":
            escaped = inner = False
        elif token == "<!--":
            escaped = True
            at = found.start() + 2  # the dashes may be part of the end of the comment
        elif token == "<script":
            inner = escaped
        elif not inner:
            return found.start()
        else:
            inner = False
    return len(text)


@given(st.lists(st.sampled_from([*PIECES, "a ", "\n"]), max_size=20).map("".join))
@example("<!--<script></script>--></script>")
@example("<!--><script></script>")
@example("<!--<script>--></script>")
def test_a_script_ends_where_the_standard_says(text: str):
    text += " " * (-len(text) % 8)
    html = np.frombuffer(text.encode(), np.uint8)
    end, ambiguous = find_raw_text_end(html, 0, html[:0], True, False)
    assert end == find_end(text)
    assert ambiguous == (end == len(text))


@pytest.mark.parametrize(
    "piece",
    [
        b"<script><!--</script>",
        b"<table><td><iframe><!--</iframe></td></table>",
        b"<ol reversed><li><script><!--</script></li></ol>",
        b"<math><style><!-- </style></math>",
    ],
)
def test_unclosed_comments_in_raw_text_take_linear_time(piece: bytes):
    def measure(count: int) -> float:
        began = time.process_time()
        walk_page(piece * count, stops=True)
        return time.process_time() - began

    measure(1)
    # Quadratic time would be 256 times as long.
    assert min(measure(32_000) for _ in range(2)) < 100 * min(measure(2_000) for _ in range(5))
