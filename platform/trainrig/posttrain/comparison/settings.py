"""Settings of the report's comparison of a model before and after tuning."""

from typing import Annotated

from trainrig.config import NOT_IDENTITY, Field, Settings


class ComparisonSettings(Settings):
    """Settings of the report's comparison of the model before and after training."""

    # Number of held-out prompts that both models answer by greedy decoding. 0: none.
    prompts: int = Field(default=4, ge=0)
    # Longest answer, in tokens.
    answer_tokens: int = Field(default=64, ge=1)
    # Folder that `tokenize` wrote with the model's tokenizer. The loss of both models on its
    # held-out text shows what was forgotten. None: the text of `pretraining`, if that is mixed in.
    text: Annotated[str | None, NOT_IDENTITY] = None
    # Number of held-out sequences to measure for each source of the text.
    rows: int = Field(default=16, ge=1)
