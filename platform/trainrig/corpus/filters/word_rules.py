"""Whose words a rule counts, and so which columns it reads.

"spaces" are our own: runs of characters without white space (signals/words.py). "datatrove" are
those of datatrove 0.10, which are spaCy's English tokens, with all that its filters do otherwise
(signals/datatrove): for verdicts equal to its own. They cost more, and need the extra `datatrove`.
"""

import importlib.util
from typing import Literal, Self

from pydantic import model_validator

from trainrig.config import Settings
from trainrig.corpus.datatrove_signals.names import PREFIX

WordRule = Literal["spaces", "datatrove"]


class CountsWords(Settings):
    """A filter that can be held to either rule of words."""

    # How words are counted: at white space, or as datatrove does (needs the extra `datatrove`).
    words: WordRule = "spaces"

    @model_validator(mode="after")
    def _spacy_is_there(self) -> Self:
        if self.words == "datatrove" and importlib.util.find_spec("spacy") is None:
            raise ValueError(
                'words = "datatrove" are spaCy\'s, which is not installed; '
                "pip install 'trainrig[datatrove]', or write words = \"spaces\""
            )
        return self

    def name_column(self, signal: str) -> str:
        """The name of the column that holds `signal` by this rule of words."""
        return PREFIX + signal if self.words == "datatrove" else signal
