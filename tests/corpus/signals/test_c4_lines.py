"""C4's lines compared with Python's own `splitlines`."""

from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.signals.c4_signals import _is_decimal, find_line
from trainrig.corpus.signals.text_arrays import build_batch

texts = st.text(st.sampled_from([*"ab [{\t\n\r\x0b\x1c\x85\u2028\xa0"]) | st.characters())


@given(texts)
def test_lines_equal_splitlines(text: str):
    batch = build_batch([text])
    place = 0
    found = []
    while place < len(text):
        line = find_line(batch.codes_C, batch.classes_C, place, len(text))
        assert text[line.start : line.end] == text[line.start : line.end].strip()
        found.append((text[line.start : line.end], line.words, line.longest))
        assert line.may_cite == ("[" in found[-1][0])
        assert line.has_curly_bracket == ("{" in found[-1][0])
        place = line.after
    lines = text.splitlines()
    words = [line.split() for line in lines]
    assert found == [
        (line.strip(), len(line_words), max(map(len, line_words), default=0))
        for line, line_words in zip(lines, words, strict=True)
    ]


def test_digits_equal_regular_expressions():
    planes = range(0x20000)
    assert [code for code in planes if _is_decimal(code)] == [
        code for code in planes if chr(code).isdecimal()
    ]
    assert not any(chr(code).isdecimal() for code in range(0x20000, 0x110000))
