"""The verbs that take a run file, each by the names of its model and its function."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from trainrig.config import RunFile
from trainrig.manifest import Manifest


@dataclass(frozen=True)
class Verb:
    """Where a verb's run file and its function are, by name: importing them takes seconds."""

    module: str
    model: str
    function: str

    def load_function(self) -> Callable[..., Manifest]:
        """The function that does it."""
        function: Callable[..., Manifest] = getattr(
            importlib.import_module(self.module), self.function
        )
        return function

    def load_model(self) -> type[RunFile]:
        """The model of its run file."""
        model: type[RunFile] = getattr(importlib.import_module(self.module), self.model)
        return model


VERBS = {
    "curate": Verb("trainrig.corpus.curate", "Curation", "curate"),
    "classifier": Verb("trainrig.corpus.models.training", "ClassifierTraining", "train_classifier"),
    "ngrams": Verb("trainrig.corpus.models.training", "NgramTraining", "train_language_model"),
    "tokenizer": Verb("trainrig.tokens.tokenizer", "TokenizerTraining", "make_tokenizer"),
    "tokenize": Verb("trainrig.tokens.prepare", "Tokenization", "tokenize"),
    "pretrain": Verb("trainrig.train.pretrain", "Pretraining", "pretrain"),
    "posttrain": Verb("trainrig.posttrain.sft", "FineTuning", "posttrain"),
    "evaluate": Verb("trainrig.evaluate.perplexity", "Evaluation", "evaluate"),
    "sweep": Verb("trainrig.scaling.sweep", "Sweep", "sweep"),
}
