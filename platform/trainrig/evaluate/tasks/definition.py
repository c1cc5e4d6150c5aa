"""A task file: TOML that defines where a benchmark's rows are and how they become prompts.

Two kinds of strings use the fields of a row. A *template* is text with `{{ field }}` in it. An
*expression* is the part between such braces, and evaluates to a list, a number or a text. Both are
evaluated in Jinja's sandbox, and a field that a row lacks is an error. This module does not import
torch.
"""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.evaluate.tasks.scoring import MultipleChoice, Scoring


class FewShot(Settings):
    """Few-shot examples: solved rows before each prompt."""

    count: int = Field(default=0, ge=0)  # number of examples; 0: none
    # File of the examples' rows; None: the task's file, without the row that is asked.
    rows: str | None = None
    # Choice of rows: the first of the file, or a random draw by `seed`. All prompts get the same
    # rows, except that a row is never an example for itself.
    draw: Literal["first", "random"] = "random"
    seed: int = Field(default=0, ge=0)  # random seed of the draw
    separator: str = "\n\n"  # text after each example


class Task(Settings):
    """One benchmark."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # name of the task in scorecards
    description: str = ""  # description of the task, for reports
    source: str = ""  # paper of the task, or its publisher's page
    # File of the task's rows: JSON Lines (plain or .gz) or Parquet. A relative path is below the
    # run file's `task_rows`.
    rows: str
    # Named expressions, which templates and other expressions can use by name.
    values: Mapping[str, str] = {}
    preamble: str = ""  # text before the few-shot examples and the prompt
    prompt: str = "{{ prompt }}"  # template of the prompt
    delimiter: str = " "  # text between a prompt and its answer
    # Expression for the group of a row, such as its passage. Standard errors treat the rows of one
    # group as one sample. None: each row is a sample.
    group: str | None = None
    few_shot: FewShot = FewShot()  # solved rows before each prompt
    scoring: Scoring  # kind of request to the model, and how its answer is scored

    @model_validator(mode="after")
    def _one_prompt_a_row(self) -> Self:
        contexts = isinstance(self.scoring, MultipleChoice) and self.scoring.contexts
        if contexts and self.few_shot.count:
            raise ValueError(
                "few_shot.count: rows with `contexts` have several prompts, so they cannot be "
                "shown solved; set it to 0"
            )
        return self
