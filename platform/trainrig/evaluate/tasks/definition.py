"""A task file: TOML that says where a benchmark's rows are and how they become prompts.

Two kinds of strings speak of a row's fields. A *template* is text with `{{ field }}` in it; an
*expression* is what stands between such braces, and gives a value: a list, a number, a text. Both
are Jinja's, in its sandbox, and a field that a row lacks is an error. No torch is needed for any
of this.
"""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.evaluate.tasks.scoring import MultipleChoice, Scoring


class FewShot(Settings):
    """Solved rows that stand before each prompt."""

    count: int = Field(default=0, ge=0)  # rows to show; 0: none
    # File of the rows to show; None: the task's own, where no row is shown to itself.
    rows: str | None = None
    # Which rows: the first of the file, or those that `seed` draws, the same before every prompt.
    draw: Literal["first", "random"] = "random"
    seed: int = Field(default=0, ge=0)  # random seed of the draw
    separator: str = "\n\n"  # text after each of them


class Task(Settings):
    """One benchmark."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # what scorecards call it
    description: str = ""  # what it asks, for reports
    source: str = ""  # paper, or page of its publisher
    # File of its rows, JSON Lines (plain or .gz) or Parquet; a relative one is looked for in the
    # run file's `task_rows`.
    rows: str
    # Expressions by the names under which templates and other expressions may use them.
    values: Mapping[str, str] = {}
    preamble: str = ""  # text before the shown rows and the prompt
    prompt: str = "{{ prompt }}"  # template of what the model is given of a row
    delimiter: str = " "  # text between a prompt and what follows it
    # Expression; rows of one value (of one passage, say) are one draw when errors are computed.
    group: str | None = None
    few_shot: FewShot = FewShot()  # solved rows before each prompt
    scoring: Scoring  # what is asked of the model, and how that is judged

    @model_validator(mode="after")
    def _one_prompt_a_row(self) -> Self:
        contexts = isinstance(self.scoring, MultipleChoice) and self.scoring.contexts
        if contexts and self.few_shot.count:
            raise ValueError("few_shot.count: rows with `contexts` have no one prompt to solve")
        return self
