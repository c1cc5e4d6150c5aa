"""What the report of a tuning run shows of the model before and after."""

from typing import Annotated

from trainrig.config import NOT_IDENTITY, Field, Settings


class ComparisonSettings(Settings):
    """What the report shows of the model before training and after."""

    # Held-out rows whose prompts both answer, the likeliest token each time; 0: none.
    prompts: int = Field(default=4, ge=0)
    # Longest answer, in tokens.
    answer_tokens: int = Field(default=64, ge=1)
    # Folder that `tokenize` wrote with the model's tokenizer: how well both predict what it holds
    # out shows what was forgotten. None: that of `pretraining`, where text is mixed in.
    text: Annotated[str | None, NOT_IDENTITY] = None
    # Sequences of each source of the text.
    rows: int = Field(default=16, ge=1)
