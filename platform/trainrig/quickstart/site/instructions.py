"""Questions and answers about Python's functions and classes, from their own descriptions."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainrig.quickstart.site.source_pages import Described, hash_with_seed

_LONGEST = 600  # characters of question and answer together
_HELD_OUT_ONE_IN = 12  # names, by their hash

_ABOUT = (
    "What does `{name}` do?",
    "Explain `{name}` in one sentence.",
    "What is `{name}` for?",
    "I came across `{name}`. What is it?",
)
_SIGNATURE = (
    "Write the signature of `{name}`.",
    "How is `{name}` called?",
    "Which parameters does `{name}` take?",
)
_MODULE = ("Which module defines `{short}`?", "Where do I import `{short}` from?")


@dataclass(frozen=True)
class Instruction:
    """A question and its answer."""

    question: str
    answer: str

    def format_line(self) -> str:
        """As one line of JSON, in the format of chat messages."""
        messages = [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": self.answer},
        ]
        return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class AnswerPair:
    """A question, its answer, and one that answers another question."""

    question: str
    right: str
    wrong: str

    def format_line(self) -> str:
        """As one line of JSON, in the format of pairs."""
        row = {
            "prompt": [{"role": "user", "content": self.question}],
            "chosen": [{"role": "assistant", "content": self.right}],
            "rejected": [{"role": "assistant", "content": self.wrong}],
        }
        return json.dumps(row, ensure_ascii=False) + "\n"


def shuffle_answers(instructions: Sequence[Instruction]) -> list[AnswerPair]:
    """Each of `instructions` beside the nearest other answer after it, the first coming after the
    last: they are in a random order already. One that has the answer of all others is left out."""
    pairs = []
    for number, given in enumerate(instructions):
        following = itertools.chain(instructions[number + 1 :], instructions[:number])
        wrong = next((each.answer for each in following if each.answer != given.answer), None)
        if wrong is not None:
            pairs.append(AnswerPair(given.question, given.answer, wrong))
    return pairs


def write_instructions(
    described: Iterable[Described], train: int, held_out: int, seed: int
) -> tuple[list[Instruction], list[Instruction]]:
    """At most `train` and `held_out` instructions, one for each name, in an order set by `seed`.

    Which of the two a name falls to depends on the name alone, so no name is in both; nor is a
    summary, for it is used for the first of the names that share it.
    """
    one_each = _select_distinct(described)
    shorts = Counter(_shorten_name(item) for item in one_each)
    chosen: tuple[list[Instruction], list[Instruction]] = ([], [])
    for item in sorted(one_each, key=lambda item: hash_with_seed(seed, item.name)):
        instruction = _make_instruction(item, shorts[_shorten_name(item)] == 1, seed)
        if len(instruction.question) + len(instruction.answer) <= _LONGEST:
            chosen[_is_held_out(item.name)].append(instruction)
    return chosen[0][:train], chosen[1][:held_out]


def _select_distinct(described: Iterable[Described]) -> Sequence[Described]:
    first: dict[str, Described] = {}
    for item in sorted(described, key=lambda item: item.name):
        first.setdefault(item.summary, item)
    return list({item.name: item for item in first.values()}.values())


def _shorten_name(item: Described) -> str:
    return item.name.rpartition(".")[2]


def _is_held_out(name: str) -> bool:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0


def _make_instruction(item: Described, short_is_unique: bool, seed: int) -> Instruction:
    """One of the questions that `item` can answer. Half ask what it is, the rest how or where."""
    draw = int.from_bytes(hash_with_seed(seed, f"question/{item.name}")[:4], "big")
    kind, form = draw % 8, draw // 8
    if kind in (0, 1, 2) and item.signature:
        question = _SIGNATURE[form % len(_SIGNATURE)].format(name=item.name)
        return Instruction(question, f"`{item.signature}`")
    if kind == 3 and short_is_unique:
        question = _MODULE[form % len(_MODULE)].format(short=_shorten_name(item))
        return Instruction(
            question, f"`{_shorten_name(item)}` is defined in the module `{item.module}`."
        )
    return Instruction(_ABOUT[form % len(_ABOUT)].format(name=item.name), item.summary)
