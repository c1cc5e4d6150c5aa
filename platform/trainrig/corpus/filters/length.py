"""Texts too short to learn from, or too long to be one text."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class Length(Settings):
    """Keeps texts of `min_characters` to `max_characters`.

    The least is our choice: two short sentences. There is no most unless one is set.
    """

    kind: Literal["Length"] = "Length"
    min_characters: int = Field(default=100, ge=0)  # fewest characters of a text that stays
    # Most characters of a text that stays; None: any number.
    max_characters: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _some_text_can_pass(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"no text has at least {self.min_characters} characters (min_characters) "
                f"and at most {self.max_characters} (max_characters)"
            )
        return self

    def iterate_limits(self) -> Iterator[Limit]:
        """Its rules."""
        yield Limit("too_short", "characters", self.min_characters)
        if self.max_characters is not None:
            yield Limit("too_long", "characters", most=self.max_characters)
