import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.rewrite.characters import Normalise

pieces = st.sampled_from([*"a1 \t\n\r\0\x85\xa0\xad\u200b\u200d\u2028“’»", "\n\n", "  "])
texts = st.one_of(st.lists(pieces, max_size=20).map("".join), st.text(st.characters()))
settings = st.builds(
    Normalise,
    line_ends=st.booleans(),
    invisible=st.booleans(),
    wide_spaces=st.booleans(),
    inner_spaces=st.booleans(),
    spaces_at_end=st.booleans(),
    quotes=st.booleans(),
    max_blank_lines=st.none() | st.integers(0, 2),
)


@pytest.mark.parametrize(
    ("text", "expected", "counts"),
    [
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd", {"line_ends": 3}),
        ("so\xadft\u200b \0bell\x07\x7f\x9f", "soft bell", {"invisible": 6}),
        ("a\xa0b\u3000c", "a b c", {"wide_spaces": 2}),
        ("a \nb\t\n  c ", "a\nb\n  c", {"spaces_at_end": 3}),
        ("a\n\n\n\nb\n\nc\n \n\nd", "a\n\nb\n\nc\n\nd", {"spaces_at_end": 1, "blank_lines": 2}),
        ("at the end ", "at the end", {"spaces_at_end": 1}),
        ("a\n\n\nb", "a\n\nb", {"blank_lines": 1}),
        ("می\u200cخواهم 👩\u200d👧", None, {}),
        ("“it’s”  a\tb", None, {}),
    ],
)
def test_each_step_by_hand(text: str, expected: str | None, counts: dict[str, int]):
    assert Normalise().apply(text, "en") == (
        text if expected is None else expected,
        dict.fromkeys(Normalise.columns, 0) | {f"normalised_{k}": v for k, v in counts.items()},
    )


def test_inner_spaces_and_quotes_are_normalised_on_request():
    text, counts = Normalise(inner_spaces=True, quotes=True).apply("  “it’s”  a\tb «c»", "en")
    assert text == '  "it\'s" a b "c"'
    assert counts["normalised_inner_spaces"] == 2
    assert counts["normalised_quotes"] == 5


@given(texts, settings)
def test_normal_text_stays_unchanged(text: str, rewrite: Normalise):
    normal, _ = rewrite.apply(text, "en")
    assert rewrite.apply(normal, "en") == (normal, dict.fromkeys(Normalise.columns, 0))


@given(texts, settings)
def test_a_text_changes_if_and_only_if_something_is_counted(text: str, rewrite: Normalise):
    normal, counts = rewrite.apply(text, "en")
    assert (normal != text) == any(counts.values())


def test_no_text_takes_more_than_linear_time():
    # A quadratic pattern would take hours.
    text = " " * 1_000_000 + "a" + "\t " * 500_000 + "b"
    everything = Normalise(inner_spaces=True, quotes=True)
    assert everything.apply(text, "en")[0] == " " * 1_000_000 + "a b"
