"""The choice of how words are counted, which decides the columns that a rule reads.

"spaces" are trainrig's words: runs of characters without white space
(signals/text_arrays/words.py). "datatrove" are the words of datatrove 0.10, which are spaCy's
English tokens, with all other differences of its filters (datatrove_signals): use them for verdicts
equal to datatrove's. They cost more and need the extra `datatrove`.
"""

import importlib.util
from typing import Literal, Self

from pydantic import model_validator

from trainrig.config import Settings
from trainrig.corpus.datatrove_signals.datatrove_columns import PREFIX

WordRule = Literal["spaces", "datatrove"]


class CountsWords(Settings):
    """A filter that supports both ways to count words."""

    # How words are counted: "spaces" splits at white space; "datatrove" follows datatrove and needs
    # the extra `datatrove`.
    words: WordRule = "spaces"

    @model_validator(mode="after")
    def _check_spacy_installed(self) -> Self:
        if self.words == "datatrove" and importlib.util.find_spec("spacy") is None:
            raise ValueError(
                'words = "datatrove" requires spaCy, which is not installed; '
                "run pip install 'trainrig[datatrove]', or set words = \"spaces\""
            )
        return self

    def name_column(self, signal: str) -> str:
        """Return the name of the column with `signal` for the chosen way to count words."""
        return PREFIX + signal if self.words == "datatrove" else signal
