"""The bytes of text that each entry of a vocabulary stands for.

A tokenizer's decoder decides in which of two spellings its entries are written:

- *byte-level* (GPT-2, Llama 3, and trainrig's byte-level BPE and WordPiece): each character stands
  for one byte;
- *plain* with byte fallback (trainrig's Unigram, Gemma): an entry is literal text, except for the
  256 entries `<0x00>` … `<0xFF>`, which stand for one byte each.

In both spellings a decoder may first replace characters, such as SentencePiece's `▁` by a space.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers

from trainrig.errors import DataError

BYTE_ENTRIES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # plain spelling of each byte

_BYTE_ENTRY = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOSSLESS = "use a byte-level tokenizer, or one with byte fallback, whose decoder is lossless"


def list_entry_bytes(
    tokenizer: tokenizers.Tokenizer, special: set[int], where: str, *, lenient: bool = False
) -> tuple[bytes, ...]:
    """Return the bytes that each id adds to a text, by id; for special tokens, their names.

    Concatenated, these are the bytes of the text that was encoded to the ids, if the tokenizer is
    lossless. The library's decoder gives the same as text, with U+FFFD for parts of characters.

    With `lenient`, two more kinds of tokenizers are accepted. One adds a space before each text
    and removes it when decoding (Llama 2's): the result then begins with that space. The other has
    gaps between its ids: a missing id stands for no bytes.

    Raises DataError, naming the tokenizer by `where`, if there is a gap between ids, or if what the
    decoder makes of an id depends on its neighbours, so that an id has no bytes by itself.
    """
    read = _make_reader(tokenizer.decoder, where, lenient)
    added = {
        number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()
    }
    entries = []
    count = tokenizer.get_vocab_size()
    if lenient:
        count = max(tokenizer.get_vocab().values(), default=-1) + 1
    for number in range(count):
        name = tokenizer.id_to_token(number)
        if name is None and lenient:
            entries.append(b"")
            continue
        if name is None:
            raise DataError(f"{where}: no entry has the id {number}; ids must have no gap")
        if number in special or number in added:
            entries.append(added.get(number, name).encode())
            continue
        found = read(name)
        if found is None:
            raise DataError(
                f"{where}: entry {number} ({name!r}) is not written in byte-level characters; "
                f"{_LOSSLESS}"
            )
        entries.append(found)
    return tuple(entries)


def list_byte_characters() -> list[str]:
    """Return, for each byte, the character that stands for it in a byte-level vocabulary.

    This is GPT-2's choice: a byte that is a visible Latin-1 character stands for itself; the others
    take, in order, the characters from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(0x100 + hidden.index(b)) for b in range(256)]


def list_decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    """Return the steps of a decoder of the library, as they are written in tokenizer.json."""
    if decoder is None:
        return []
    written = json.loads(decoder.__getstate__())
    return list(written["decoders"]) if written["type"] == "Sequence" else [written]


def strips_leading_space(decoder: Any) -> bool:
    """Return whether a decoder removes a leading space, which its encoder adds to every text."""
    return any(map(_step_strips_leading_space, list_decoder_steps(decoder)))


def _step_strips_leading_space(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return True
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return bool(scheme != "never")
    return False


def _make_reader(decoder: Any, where: str, lenient: bool) -> Callable[[str], bytes | None]:
    """Return a function that gives the bytes of an entry, or None for an entry it cannot read."""
    replacements: list[tuple[str, str]] = []
    spelling: Callable[[str], bytes | None] | None = None
    # Without a decoder the library puts spaces between entries. Byte-level is the only possibility.
    for step in list_decoder_steps(decoder) or [{"type": "ByteLevel"}]:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not spelling:
                replacements.append((old, new))
            case {"type": "ByteLevel"} if not spelling:
                spelling = _make_byte_level_reader()
            case {"type": "ByteFallback"} if not spelling:
                spelling = _parse_plain
            case {"type": "Fuse"} if spelling:
                pass
            case {"type": "Metaspace", "replacement": mark} if lenient and not spelling:
                replacements.append((mark, " "))
                spelling = _parse_plain
            case _ if lenient and spelling and _step_strips_leading_space(step):
                pass
            case _:
                raise DataError(f"{where}: decoder {_describe_step(step)}: {_LOSSLESS}")
    if spelling is None:
        raise DataError(f"{where}: decoder Replace alone has no entry for every byte; {_LOSSLESS}")
    read = spelling

    def read_replaced(name: str) -> bytes | None:
        for old, new in replacements:
            name = name.replace(old, new)
        return read(name)

    return read_replaced if replacements else read


def _describe_step(step: Mapping[str, Any]) -> str:
    if step["type"] == "Strip":
        return "Strip removes spaces that may be part of the text"
    return f"{step['type']} does not give each entry fixed bytes"


def _make_byte_level_reader() -> Callable[[str], bytes | None]:
    byte_of = {character: byte for byte, character in enumerate(list_byte_characters())}

    def read(name: str) -> bytes | None:
        if any(character not in byte_of for character in name):
            return None
        return bytes(byte_of[character] for character in name)

    return read


def _parse_plain(name: str) -> bytes:
    byte = _BYTE_ENTRY.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.encode()
