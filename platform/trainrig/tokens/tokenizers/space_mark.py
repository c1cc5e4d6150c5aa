"""Rewriting of vocabularies in which spaces are written as SentencePiece's mark `▁`.

A tokenizer that replaces spaces by `▁` before its model, and back afterwards, cannot distinguish a
`▁` in the text from a space. If its entries are rewritten with spaces instead, the model sees the
same pieces at the same places, so the ids stay the same. A literal `▁` in a text, which is then not
an entry, is encoded as its bytes.
"""

from collections.abc import Mapping
from typing import Any

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
