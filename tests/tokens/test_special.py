import pytest

from trainrig.tokens import special_tokens
from trainrig.tokens.special_tokens import (
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    PAD,
    PUBLISHED_NAMES,
    SPECIAL_TOKENS,
    SYSTEM,
    find_role_id,
    list_special_tokens,
)


def test_the_ids_of_trainrigs_special_tokens_are_fixed():
    names = ["END_OF_TEXT", "PAD", "USER", "ASSISTANT", "END_OF_TURN", "BEGIN_OF_TEXT", "SYSTEM"]
    assert [getattr(special_tokens, name) for name in names] == list(SPECIAL_TOKENS)
    assert len(set(SPECIAL_TOKENS)) == 7


def test_reserved_slots_come_after_the_special_tokens():
    assert list_special_tokens(0) == list(SPECIAL_TOKENS)
    assert list_special_tokens(2)[7:] == ["<|reserved_0|>", "<|reserved_1|>"]


@pytest.mark.parametrize(
    ("tokens", "role", "number"),
    [
        ({"<|endoftext|>": 50256}, END_OF_TEXT, 50256),
        ({"<s>": 1, "</s>": 2, "<unk>": 0}, END_OF_TEXT, 2),
        ({"<s>": 1, "</s>": 2, "<unk>": 0}, BEGIN_OF_TEXT, 1),
        ({"<|eot_id|>": 128009, "<|end_of_text|>": 128001}, END_OF_TURN, 128009),
        ({"</s>": 2, "<|end_of_text|>": 9}, END_OF_TEXT, 9),  # trainrig's own name comes first
        ({"<bos>": 0}, BEGIN_OF_TEXT, 0),
        ({"<s>": 1}, PAD, None),
        ({"<s>": 1}, SYSTEM, None),
        ({"<|reserved_3|>": 10}, "<|reserved_3|>", 10),
    ],
)
def test_a_role_is_found_by_our_name_or_a_published_one(tokens, role, number):
    assert find_role_id(tokens, role) == number


def test_no_published_name_plays_two_roles():
    names = [name for names in PUBLISHED_NAMES.values() for name in names]
    assert len({*names, *SPECIAL_TOKENS}) == len(names) + len(SPECIAL_TOKENS)
    assert set(PUBLISHED_NAMES) == {*SPECIAL_TOKENS, MASK}  # only some tokenizers have a mask
