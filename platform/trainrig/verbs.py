"""The verbs that take a run file: one entry for each is all that a new one needs beside its file.

An entry holds what `trainrig --help` prints, so that nothing else is imported for it. The rest of a
verb's contract is said by the model of its run file, which is imported when the verb is used:
inputs, outputs and caches by the marks of its fields, the rest as `config.RunFile` lists it.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trainrig.config import RunFile
from trainrig.manifest import Manifest


@dataclass(frozen=True)
class Verb:
    """Where a verb's function and run file are, by name, and how the list of commands shows it.

    Importing takes time, and what the function needs (torch, pyarrow) seconds. So the model is in a
    module that does without.
    """

    function: str  # MODULE:NAME
    model: str  # MODULE:NAME
    section: Literal["data", "models", "scaling"]  # of `trainrig --help`
    summary: str  # one sentence
    example: str = "quickstart"  # folder of jobs/configs that has a run file of it

    def load_function(self) -> Callable[..., Manifest]:
        """The function that does it."""
        function: Callable[..., Manifest] = load_named(self.function)
        return function

    def load_model(self) -> type[RunFile]:
        """The model of its run file."""
        model: type[RunFile] = load_named(self.model)
        return model


def load_named(place: str) -> Any:
    """What MODULE:NAME names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


VERBS = {
    "curate": Verb(
        "trainrig.corpus.curate:curate",
        "trainrig.corpus.run_file:Curation",
        "data",
        "Turn web pages into documents: extract, mask personal data, filter and deduplicate.",
    ),
    "classifier": Verb(
        "trainrig.corpus.models.training:train_classifier",
        "trainrig.corpus.models.training:ClassifierTraining",
        "data",
        "Train a text classifier on wanted and unwanted texts, for `curate` to score by.",
        example="crawl",
    ),
    "ngrams": Verb(
        "trainrig.corpus.models.training:train_language_model",
        "trainrig.corpus.models.training:NgramTraining",
        "data",
        "Train an n-gram language model, for `curate` to compute perplexities by.",
        example="crawl",
    ),
    "tokenizer": Verb(
        "trainrig.tokens.tokenizer:make_tokenizer",
        "trainrig.tokens.tokenizer:TokenizerTraining",
        "data",
        "Train a tokenizer on a sample of documents.",
    ),
    "tokenize": Verb(
        "trainrig.tokens.prepare:tokenize",
        "trainrig.tokens.prepare:Tokenization",
        "data",
        "Encode documents into token shards, holding some of them out for evaluation.",
    ),
    "conversations": Verb(
        "trainrig.posttrain.conversations:encode_conversations",
        "trainrig.posttrain.conversation_run:ConversationEncoding",
        "data",
        "Turn conversations, pairs of answers, or texts with labels into token shards.",
    ),
    "pretrain": Verb(
        "trainrig.train.pretrain:pretrain",
        "trainrig.train.run_file.run_files:Pretraining",
        "models",
        "Train a model on token shards; run it again to continue after a stop.",
    ),
    "posttrain": Verb(
        "trainrig.posttrain.sft:posttrain",
        "trainrig.posttrain.run_file:FineTuning",
        "models",
        "Fine-tune a checkpoint on conversations; run it again to continue after a stop.",
    ),
    "teacher": Verb(
        "trainrig.posttrain.distillation.stage:store_teacher",
        "trainrig.posttrain.distillation.run_file:TeacherScoring",
        "models",
        "Store what a teacher expects at each place of conversations, for `posttrain` to distil.",
        example="distillation",
    ),
    "sample": Verb(
        "trainrig.posttrain.sampling.stage:sample_answers",
        "trainrig.posttrain.sampling.run_file:AnswerSampling",
        "models",
        "Sample answers to prompts, score them by rewards, and keep the best to train on.",
        example="distillation",
    ),
    "constitutional": Verb(
        "trainrig.posttrain.constitutional.stage:revise_answers",
        "trainrig.posttrain.constitutional.run_file:ConstitutionalChain",
        "models",
        "Have a model criticise, revise and judge its answers by principles.",
        example="constitutional",
    ),
    "rl": Verb(
        "trainrig.posttrain.rollouts.stage:reinforce",
        "trainrig.posttrain.rollouts.run_file:ReinforcementLearning",
        "models",
        "Teach a checkpoint by what its own answers are worth; run it again to continue.",
        example="reinforcement",
    ),
    "score": Verb(
        "trainrig.posttrain.score.stage:score_rows",
        "trainrig.posttrain.score.run_file:AnswerScoring",
        "models",
        "Score answers in files by a reward model, or label texts, row by row.",
        example="preferences",
    ),
    "evaluate": Verb(
        "trainrig.evaluate.scorecard:evaluate",
        "trainrig.evaluate.run_file:Evaluation",
        "models",
        "Score a checkpoint: on benchmarks, with errors, and on held-out text, in bits per byte.",
    ),
    "embed": Verb(
        "trainrig.evaluate.embed.stage:embed",
        "trainrig.evaluate.embed.run_file:DocumentEmbedding",
        "models",
        "Give each document a vector, by the hidden states of a trained model, as Parquet.",
        example="encoder",
    ),
    "sweep": Verb(
        "trainrig.scaling.sweep.sweep:sweep",
        "trainrig.scaling.sweep.run_file:Sweep",
        "scaling",
        "Train many small models to fit scaling laws to; run it again to continue after a stop.",
    ),
}
