"""Inputs for the commands after the quickstart: each reads as its command expects."""

import json

from trainrig.quickstart.site.later_inputs import PRINCIPLES, format_problems, format_prompts
from trainrig.quickstart.site.questions import Instruction


def test_the_answer_of_a_problem_is_its_sum() -> None:
    rows = [json.loads(line) for line in format_problems(0).splitlines()]
    assert len(rows) == 200
    for row in rows:
        first, second = row["question"].removeprefix("What is ").rstrip("?").split(" + ")
        assert int(first) + int(second) == int(row["answer"])
    assert format_problems(0) == format_problems(0) != format_problems(1)


def test_prompts_are_questions_and_principles_are_paragraphs() -> None:
    assert format_prompts([Instruction("Why?", "So.")]) == '{"prompt": "Why?"}\n'
    assert len([part for part in PRINCIPLES.split("\n\n") if not part.startswith("#")]) == 2
