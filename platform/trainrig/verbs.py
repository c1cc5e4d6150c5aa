"""The verbs that take a run file, each by the names of its model and its function."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainrig.config import RunFile
from trainrig.manifest import Manifest


@dataclass(frozen=True)
class Verb:
    """Where a verb's run file and its function are, by name: importing them takes time, what the
    function needs (torch, pyarrow) seconds. So the model is in a module that does without."""

    function: str  # MODULE:NAME
    model: str

    def load_function(self) -> Callable[..., Manifest]:
        """The function that does it."""
        function: Callable[..., Manifest] = _named(self.function)
        return function

    def load_model(self) -> type[RunFile]:
        """The model of its run file."""
        model: type[RunFile] = _named(self.model)
        return model


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"trainrig.{module}"), name)


VERBS = {
    "curate": Verb("corpus.curate:curate", "corpus.run_file:Curation"),
    "classifier": Verb(
        "corpus.models.training:train_classifier", "corpus.models.training:ClassifierTraining"
    ),
    "ngrams": Verb(
        "corpus.models.training:train_language_model", "corpus.models.training:NgramTraining"
    ),
    "tokenizer": Verb("tokens.tokenizer:make_tokenizer", "tokens.tokenizer:TokenizerTraining"),
    "tokenize": Verb("tokens.prepare:tokenize", "tokens.prepare:Tokenization"),
    "pretrain": Verb("train.pretrain:pretrain", "train.run_file:Pretraining"),
    "posttrain": Verb("posttrain.sft:posttrain", "posttrain.run_file:FineTuning"),
    "evaluate": Verb("evaluate.perplexity:evaluate", "evaluate.run_file:Evaluation"),
    "sweep": Verb("scaling.sweep.sweep:sweep", "scaling.sweep.run_file:Sweep"),
}
