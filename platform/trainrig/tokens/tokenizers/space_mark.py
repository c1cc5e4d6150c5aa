"""SentencePiece's way to write a space, and the same vocabulary without it.

A tokenizer that turns spaces into `▁` before its model and back after it cannot tell a `▁` of the
text from a space. Its entries can be rewritten with spaces instead: the model then sees the same
pieces at the same places, so ids are the same, and a literal `▁`, of which no entry is left, falls
back to its bytes.
"""

from collections.abc import Mapping
from typing import Any

SPACE_MARK = "▁"

_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
_TO_SPACE = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}


def spaces_are_marked(description: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json marks spaces, and does nothing else to a text before its model.

    `description` is as the library writes it, here and below.

    One that also puts a space before each text (Llama 2's does) is none: what it added could not
    be told from a space of the text.
    """
    entries = _list_entries(description["model"])
    return (
        description.get("normalizer") == _TO_MARK
        and _TO_SPACE in (description.get("decoder") or {}).get("decoders", [])
        and _cuts_nothing(description.get("pre_tokenizer"))
        and bool(entries)
        and not any(" " in entry for entry in entries)
        and all(token["content"] in entries for token in _find_marked(description))
    )


def with_spaces(description: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json whose entries have spaces where those of `description` have marks."""
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
    # Matched before the text was changed, so by nothing but a literal mark.
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


def _cuts_nothing(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether it is none, or cuts at spaces, of which it sees none (Gemma's)."""
    return pre_tokenizer is None or (
        pre_tokenizer["type"] == "Split" and pre_tokenizer["pattern"] == {"String": " "}
    )


def _unmark_spaces(entry: str) -> str:
    return entry.replace(SPACE_MARK, " ")


def _split_merge(merge: str | list[str]) -> list[str]:
    """A merge as two entries; older files write it as one string with a space between."""
    return merge.split(" ") if isinstance(merge, str) else merge
