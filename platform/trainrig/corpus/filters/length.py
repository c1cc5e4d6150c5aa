"""A filter that drops texts that are too short or too long."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class Length(Settings):
    """Keeps texts of `min_characters` to `max_characters`.

    The default minimum, two short sentences, is trainrig's choice. There is no default maximum.
    """

    kind: Literal["Length"] = "Length"
    min_characters: int = Field(default=100, ge=0)  # fewest characters of a text to keep
    # Most characters of a text to keep; None: no limit.
    max_characters: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_length_range(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"min_characters ({self.min_characters}) is above max_characters "
                f"({self.max_characters}), so no text can pass; lower min_characters"
            )
        return self

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        yield Limit("too_short", "characters", self.min_characters)
        if self.max_characters is not None:
            yield Limit("too_long", "characters", most=self.max_characters)
