import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from trainrig.tokens.tokenizers.tokenizer_kinds import make_plain_splitter, make_word_splitter

MIXED = "I'm 12345 x_y  (ok)\n\n  end"


def split_words(splitter: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [word for word, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gpt2", ["I", "'m", " 12345", " x", "_", "y", " ", " (", "ok", ")", "\n\n ", " end"]),
        (
            "llama3",
            ["I", "'m", " ", "123", "45", " x", "_y", " ", " (", "ok", ")\n\n", " ", " end"],
        ),
        ("none", [MIXED]),
    ],
)
def test_a_text_is_cut_as_the_named_tokenizer_cuts_it(words, expected):
    assert split_words(make_plain_splitter(words), MIXED) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_trainrigs_gpt_2_pattern_equals_the_librarys(text):
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    ours = pre_tokenizers.Sequence(
        [
            make_plain_splitter("gpt2"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert ours.pre_tokenize_str(text) == library.pre_tokenize_str(text)


@pytest.mark.parametrize("words", ["gpt2", "llama3", "none"])
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["a<|b|><|", ""]))
def test_words_joined_are_the_text(words, text):
    assert "".join(split_words(make_plain_splitter(words), text)) == text
    assert len("".join(split_words(make_word_splitter(words), text))) == len(text.encode())


def test_without_word_splitting_text_is_split_only_around_special_names():
    assert split_words(make_plain_splitter("none"), "to be <|pad|>") == ["to be ", "<|", "pad|>"]
