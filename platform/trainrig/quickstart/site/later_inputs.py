"""Inputs for the commands that a user tries after the quickstart: problems, prompts, principles."""

import json
from collections.abc import Sequence

from trainrig.quickstart.site.questions import Instruction
from trainrig.quickstart.site.source_pages import hash_with_seed

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
    return _format_lines(rows)


def format_prompts(instructions: Sequence[Instruction]) -> str:
    """Return the questions of `instructions` as JSON Lines with `prompt`."""
    return _format_lines([{"prompt": instruction.question} for instruction in instructions])


def _format_lines(rows: Sequence[dict[str, str]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
