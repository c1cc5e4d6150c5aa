"""Questions and answers on Python's functions and classes, made from their docstrings.

Also the inputs for commands that a user tries after the quickstart: problems, prompts, principles.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.quickstart.site.source_pages import Described, hash_with_seed

_LONGEST = 600  # Largest number of characters of a question and its answer together.
_HELD_OUT_ONE_IN = 12  # Share of names that is held out, chosen by hash: one in 12.

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

    def build_row(self) -> dict[str, Any]:
        """Return the instruction as a row of chat messages."""
        return {"messages": [_ask(self.question), _answer(self.answer)]}


def _ask(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def _answer(answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": answer}


def shuffle_answers(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Return preference pairs of each answer and the next different one, which is wrong.

    Instructions are already in a random order; after the last comes the first. An instruction is
    left out if all others have the same answer.
    """
    pairs = []
    for number, given in enumerate(instructions):
        following = itertools.chain(instructions[number + 1 :], instructions[:number])
        wrong = next((other.answer for other in following if other.answer != given.answer), None)
        if wrong is not None:
            chosen, rejected = [_answer(given.answer)], [_answer(wrong)]
            pair = {"prompt": [_ask(given.question)], "chosen": chosen, "rejected": rejected}
            pairs.append(pair)
    return pairs


def write_instructions(
    described: Iterable[Described], train: int, held_out: int, seed: int
) -> tuple[list[Instruction], list[Instruction]]:
    """Write at most `train` and `held_out` instructions, one a name, ordered by `seed`.

    The name alone decides between the two, so no name is in both. No summary is in both either,
    because only the first of the names that share a summary is used.
    """
    one_each = _select_distinct(described)
    shorts = Counter(_shorten_name(item) for item in one_each)
    chosen: tuple[list[Instruction], list[Instruction]] = ([], [])
    for item in sorted(one_each, key=lambda item: hash_with_seed(seed, item.name)):
        instruction = _make_instruction(item, shorts[_shorten_name(item)] == 1, seed)
        if len(instruction.question) + len(instruction.answer) <= _LONGEST:
            digest = hashlib.blake2b(item.name.encode(), digest_size=8).digest()
            held = int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0
            chosen[held].append(instruction)
    return chosen[0][:train], chosen[1][:held_out]


def _select_distinct(described: Iterable[Described]) -> Sequence[Described]:
    first: dict[str, Described] = {}
    for item in sorted(described, key=lambda item: item.name):
        first.setdefault(item.summary, item)
    return list({item.name: item for item in first.values()}.values())


def _shorten_name(item: Described) -> str:
    return item.name.rpartition(".")[2]


def _make_instruction(item: Described, short_is_unique: bool, seed: int) -> Instruction:
    """Write one question on `item` with its answer.

    Half of the questions ask for the purpose, the others for the signature or the module.
    """
    draw = int.from_bytes(hash_with_seed(seed, f"question/{item.name}")[:4], "big")
    kind = draw % 8
    form = draw // 8
    if kind in (0, 1, 2) and item.signature:
        question = _SIGNATURE[form % len(_SIGNATURE)].format(name=item.name)
        return Instruction(question, f"`{item.signature}`")
    if kind == 3 and short_is_unique:
        question = _MODULE[form % len(_MODULE)].format(short=_shorten_name(item))
        return Instruction(
            question, f"`{_shorten_name(item)}` is defined in the module `{item.module}`."
        )
    return Instruction(_ABOUT[form % len(_ABOUT)].format(name=item.name), item.summary)


PROBLEMS = 200  # sums of two numbers below LARGEST
LARGEST = 50
PRINCIPLES = """# Principles for `trainrig constitutional`, one a paragraph. This is a comment.

The answer should be correct, and should say so if something is not known.

The answer should be short, and should end with a whole sentence.
"""


def format_problems(seed: int) -> str:
    """Return sums as JSON Lines: `question` in words, `answer` as a number in a string."""
    rows = []
    for number in range(PROBLEMS):
        digest = hash_with_seed(seed, f"problem/{number}")
        first, second = (int.from_bytes(digest[at : at + 4], "big") % LARGEST for at in (0, 4))
        rows.append({"question": f"What is {first} + {second}?", "answer": str(first + second)})
    return format_lines(rows)


def format_prompts(instructions: Sequence[Instruction]) -> str:
    """Return the questions of `instructions` as JSON Lines with `prompt`."""
    return format_lines([{"prompt": instruction.question} for instruction in instructions])


def format_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `rows` as JSON Lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
