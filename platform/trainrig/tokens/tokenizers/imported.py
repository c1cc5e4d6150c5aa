"""Import of a tokenizer made with other tools: checks, missing special tokens, and space marks.

Rewriting of vocabularies in which spaces are written as SentencePiece's mark `▁`.

A tokenizer that replaces spaces by `▁` before its model, and back afterwards, cannot distinguish a
`▁` in the text from a space. If its entries are rewritten with spaces instead, the model sees the
same pieces at the same places, so the ids stay the same. A literal `▁` in a text, which is then not
an entry, is encoded as its bytes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import tokenizers
from tokenizers import decoders

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.errors import DataError
from trainrig.tokens.special_tokens import SPECIAL_TOKENS, find_role_id
from trainrig.tokens.tokenizers.entry_bytes import list_entry_bytes

SPACE_MARK = "▁"

_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
_TO_SPACE = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}


def marks_spaces(description: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer only replaces spaces by marks before its model.

    `description` is its tokenizer.json as the library writes it. False for a tokenizer that also
    adds a space before each text, as Llama 2's does: the added space could not be distinguished
    from a space of the text.
    """
    entries = _list_entries(description["model"])
    return (
        description.get("normalizer") == _TO_MARK
        and _TO_SPACE in (description.get("decoder") or {}).get("decoders", [])
        and _never_splits(description.get("pre_tokenizer"))
        and bool(entries)
        and not any(" " in entry for entry in entries)
        and all(token["content"] in entries for token in _find_marked(description))
    )


def replace_space_marks(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer.json of `description` with spaces instead of marks in its entries."""
    model = dict(description["model"])
    if model["type"] == "BPE":
        model["vocab"] = {_unmark_spaces(entry): number for entry, number in model["vocab"].items()}
        model["merges"] = [
            [_unmark_spaces(part) for part in _split_merge(merge)] for merge in model["merges"]
        ]
    else:
        model["vocab"] = [[_unmark_spaces(entry), score] for entry, score in model["vocab"]]
    decoder = dict(description["decoder"])
    decoder["decoders"] = [step for step in decoder["decoders"] if step != _TO_SPACE]
    # These are matched before spaces are replaced, so only a literal mark in the text matches.
    marked = _find_marked(description)
    return dict(description) | {
        "model": model,
        "normalizer": None,
        "pre_tokenizer": None,
        "decoder": decoder,
        "added_tokens": [t for t in description["added_tokens"] if t not in marked],
    }


def _list_entries(model: Mapping[str, Any]) -> set[str]:
    if model.get("type") == "BPE":
        return set(model["vocab"])
    if model.get("type") == "Unigram":
        return {entry for entry, _ in model["vocab"]}
    return set()


def _find_marked(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        token
        for token in description["added_tokens"]
        if SPACE_MARK in token["content"] and not token["special"]
    ]


def _never_splits(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Return whether a pre-tokenizer never splits: there is none, or it splits at spaces (Gemma).

    Spaces have already been replaced by marks at this point.
    """
    return pre_tokenizer is None or (
        pre_tokenizer["type"] == "Split" and pre_tokenizer["pattern"] == {"String": " "}
    )


def _unmark_spaces(entry: str) -> str:
    return entry.replace(SPACE_MARK, " ")


def _split_merge(merge: str | list[str]) -> list[str]:
    """Return the two entries of a merge; older files write it as one string with a space."""
    return merge.split(" ") if isinstance(merge, str) else merge


# Texts that reveal a lossy tokenizer: all bytes of UTF-8, white space, characters that normalizers
# change, and text that looks like the names of entries.
PROBES = (
    "".join(map(chr, range(0x80))),
    "".join(map(chr, [*range(0x80, 0x800, 61), *range(0x80, 0xC0)])),
    "".join(map(chr, [*range(0x800, 0xD800, 997), *range(0xE000, 0x110000, 9973), 0x10FFFF])),
    "A word,  two spaces, THREE:   \t\ttabs\r\nand lines\n\n\n   indented ",
    " a space before",
    "  ",
    "\n",
    "e\u0301 \u00e9 \ufb01 \uff21 \u212b \u1e9b\u0323 \u3000 \u00a0 \u200b \ufeff \u00ad",
    f"{SPACE_MARK}a {SPACE_MARK} {SPACE_MARK}{SPACE_MARK}b",
    "<0x41><0xE9> ##ing Ġword Ċ ‿a </w> [UNK] <unk>",
    "don't I'LL 1234567890 3.14 x_y a@b.c 猫が好き हिन्दी 한국어 🐈‍⬛👩‍👩‍👧 نص",
)


class Imported(Settings):
    """The `tokenizer.json` at `path`, on disk or in a bucket, as Hugging Face tokenizers are saved.

    Its entries keep their ids. Special tokens that trainrig needs, and whose role none of its own
    tokens has, are added after the last entry. A lossy tokenizer, whose decoding of some text
    differs from the text, is refused.

    SentencePiece writes a space as `▁`, so a `▁` in a text would be decoded as a space. Such a
    vocabulary is rewritten with spaces. The ids of texts stay the same, except for a literal `▁`,
    which is encoded as its bytes.
    """

    kind: Literal["Imported"] = "Imported"
    path: Annotated[str, NOT_IDENTITY]  # a tokenizer.json, on disk or in a bucket
    # Whether to remove the normalizer, which changes texts irreversibly (NFC joins `e` and its
    # accent). Texts that it would not have changed keep their ids, and decoding becomes lossless.
    drop_normalizer: bool = False

    @property
    def content(self) -> str:
        """Fingerprint of the file's content; raises DataError if it cannot be read."""
        return manifest.digest(_read(self.path))

    def train(self, texts: Iterable[str]) -> bytes:
        """Return the `tokenizer.json` to use, ignoring `texts`; raise DataError if it is lossy."""
        description = _read(self.path)
        description |= {"truncation": None, "padding": None}  # either would silently change texts
        # Let the library rewrite the file, which adds missing keys and updates older formats.
        description = json.loads(_parse_tokenizer(description, self.path).to_str())
        if marks_spaces(description):
            description = replace_space_marks(description)
        elif self.drop_normalizer:
            description["normalizer"] = None
        tokenizer = _parse_tokenizer(description, self.path)
        _add_missing_roles(tokenizer)
        _check_round_trip(tokenizer, self.path)
        return bytes(tokenizer.to_str(), "utf-8")


def _read(path: str) -> dict[str, Any]:
    try:
        description = json.loads(storage.read(path).decode("utf-8"))
    except FileNotFoundError:
        raise DataError(f"tokenizer.path: {path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"tokenizer.path: {path}: is a folder; name the tokenizer.json") from None
    except (ValueError, RecursionError):
        raise DataError(
            f"{path}: not JSON, so this is not a tokenizer.json; name one that Transformers "
            "or trainrig saved"
        ) from None
    if not isinstance(description, dict) or "model" not in description:
        raise DataError(f"{path}: not a tokenizer.json: it has no model")
    return description


def _parse_tokenizer(description: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # the library raises no more specific error
        found = " ".join(str(error).split())
        raise DataError(f"{where}: not a tokenizer.json: {found}; download it again") from None
    # This setting is not saved in tokenizer.json.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _list_special_ids(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: number for number, token in added.items() if token.special}


def _add_missing_roles(tokenizer: tokenizers.Tokenizer) -> None:
    there = _list_special_ids(tokenizer)
    tokenizer.add_special_tokens([r for r in SPECIAL_TOKENS if find_role_id(there, r) is None])


def _check_round_trip(tokenizer: tokenizers.Tokenizer, where: str) -> None:
    """Raise DataError if the tokenizer is lossy, or if a text produces a special token."""
    special = _list_special_ids(tokenizer)
    entries = list_entry_bytes(tokenizer, set(special.values()), where)
    for text in (*PROBES, *_iterate_name_texts(special)):
        ids = _encode_text(tokenizer, text, where)
        made = sorted(set(ids) & set(special.values()))
        if made:
            raise DataError(
                f"{where}: the text {text!r} is encoded with the special token {made[0]} "
                f"({tokenizer.id_to_token(made[0])}); use a tokenizer that never encodes text "
                f"with special tokens"
            )
        back = b"".join(entries[i] for i in ids).decode("utf-8", errors="replace")
        if back != text:
            raise DataError(
                f"{where}: changes text when decoding: {_describe_difference(text, back)}; use a "
                f"byte-level tokenizer{_suggest_fix(tokenizer)}"
            )


def _encode_text(tokenizer: tokenizers.Tokenizer, text: str, where: str) -> list[int]:
    try:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    except Exception as error:  # the library raises no more specific error
        raise DataError(
            f"{where}: cannot encode {text[:9]!r}: {error}; use a byte-level tokenizer"
        ) from None


def _iterate_name_texts(special: Iterable[str]) -> Iterator[str]:
    for name in special:
        yield name
        yield f"a {name}b"
        yield decoders.ByteLevel().decode([name])  # the text that a byte-level entry `name` means


def _describe_difference(text: str, back: str) -> str:
    place = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), None)
    place = min(len(text), len(back)) if place is None else place
    begin = max(0, place - 3)
    return f"{text[begin : place + 6]!r} as {back[begin : place + 6]!r}"


def _suggest_fix(tokenizer: tokenizers.Tokenizer) -> str:
    if tokenizer.normalizer is None:
        return ""
    kind = type(tokenizer.normalizer).__name__
    return f", or set drop_normalizer = true to leave out its normalizer ({kind})"
