import functools

import numpy as np

from trainrig.tokens.batches import IGNORE
from trainrig.tokens.row_view import RowPiece, count_padding, render_row
from trainrig.tokens.special_tokens import PAD
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE


@functools.cache
def encoder() -> Encoder:
    return Encoder(
        train_tokenizer(ByteLevelBPE(vocabulary=270), ["the cat sat on the mat"] * 3).decode()
    )


def encode(text: str) -> np.ndarray:
    return encoder().encode_batch([text])[0].astype(np.int64)


def render(
    row: np.ndarray, pieces: list[RowPiece], untrained: tuple[int, ...] = (), **options
) -> str:
    """Return the view of the ids `row`.

    The last id has no target, nor have those at `untrained`.
    """
    targets = np.append(row[1:], IGNORE)
    for place in untrained:
        targets[place - 1] = IGNORE
    return render_row(row, targets, pieces, encoder(), **options).plain


def test_a_row_shows_each_document_under_its_name_and_the_first_id_as_no_target():
    row = np.concatenate([encode("a cat"), encode("dogs")])
    second = len(encode("a cat"))
    text = render(row, [RowPiece(0, "https://a.example"), RowPiece(second, "https://b.example")])
    first = f"┃ https://a.example: {second} tokens at 0, 1 not trained on"
    then = f"┃ https://b.example: {len(row) - second} tokens at {second}"
    assert text == f"{first}\n‹a› cat\n{then}\ndogs\n"


def test_tokens_without_a_target_are_marked():
    row = encode("xyzxyz")
    assert len(row) == 6
    assert render(row, [RowPiece(0, "d")], untrained=(3, 4)).endswith("‹x›yz‹xy›z\n")


def test_the_last_target_has_its_own_line():
    row = encode("xyzx")
    text = render_row(row[:-1], row[1:], [RowPiece(0, "d")], encoder()).plain
    assert text == "┃ d: 3 tokens at 0, 1 not trained on\n‹x›yz\n┃ last target: x\n"


def test_padding_is_counted_and_is_no_documents_token():
    pad = encoder().find_special(PAD)
    row = np.concatenate([encode("xyz"), [pad, pad]])
    text = render(row, [RowPiece(0, "d")], untrained=(3, 4))
    assert text == "┃ d: 3 tokens at 0, 1 not trained on\n‹x›yz\n┃ 2 tokens of padding\n"
    assert [count_padding(part, encoder()) for part in (row, row[:3], row[3:])] == [2, 0, 2]


def test_the_middle_of_a_long_piece_is_left_out_and_counted():
    row = encode("x" + "yz" * 50)
    text = render(row, [RowPiece(0, "d")], tokens=3)
    assert text.endswith("‹x›yz … 95 tokens … zyz\n")


def test_characters_of_several_tokens_are_whole_and_borders_show_them_apart():
    row = encode("x猫")
    assert len(row) == 4
    assert render(row, [RowPiece(0, "d")]).endswith("‹x›猫\n")
    assert render(row, [RowPiece(0, "d")], borders=True).endswith("‹x›\ufffd·\ufffd·\ufffd\n")


def test_control_characters_in_texts_are_escaped():
    text = render(encode("x\x1b[2Jy\u202e"), [RowPiece(0, "https://e.example/\x1b]0;")])
    assert "\x1b" not in text and "\u202e" not in text
    assert "⟨U+001B⟩" in text and "⟨U+202E⟩" in text


def test_neighbouring_documents_have_different_colours_and_masks_are_more_than_a_colour():
    row = encode("xyzxyz")
    styles = [
        str(span.style)
        for span in render_row(
            row[:-1], row[1:], [RowPiece(0, "a"), RowPiece(3, "b")], encoder()
        ).spans
    ]
    colours = ["bold cyan", "dim underline cyan", "cyan", "bold yellow", "yellow", "bold"]
    assert styles == colours
