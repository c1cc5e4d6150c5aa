"""Registry of the verbs that take a run file; a new verb needs only an entry here and its module.

An entry holds the texts of `trainrig --help`, so that printing the help imports no other module.
The run-file model, which is imported when the verb is used, describes the rest. The marks of its
fields tell inputs, outputs and caches apart, and `config.RunFile` lists its class variables.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trainrig.config import RunFile, suggest_choice
from trainrig.manifest import Manifest


@dataclass(frozen=True)
class Verb:
    """Names of a verb's function and run-file model, and its entry in the list of commands.

    The imports of the function (torch, pyarrow) take seconds. The model is therefore in a module
    that does not need them.
    """

    function: str  # MODULE:NAME
    model: str  # MODULE:NAME
    section: Literal["data", "models", "scaling"]  # section of `trainrig --help`
    summary: str  # one sentence
    example: str = "quickstart"  # folder of jobs/configs with a run file of the verb

    def load_function(self) -> Callable[..., Manifest]:
        """Import and return the function that performs the verb."""
        function: Callable[..., Manifest] = load_named(self.function)
        return function

    def load_model(self) -> type[RunFile]:
        """Import and return the model of the verb's run file."""
        model: type[RunFile] = load_named(self.model)
        return model


def load_named(place: str) -> Any:
    """Import and return the object that `place`, as MODULE:NAME, names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def suggest_verb(name: str) -> str:
    """Return a hint at the verb that `name` stands for, as `suggest_choice` does."""
    if name.lower() in OTHER_NAMES:
        return f"; did you mean '{OTHER_NAMES[name.lower()]}'?"
    return suggest_choice(name, VERBS)


# Names that other tools have for a command.
OTHER_NAMES = {
    **dict.fromkeys(("sft", "dpo", "kto", "lora", "finetune", "fine-tune", "tune"), "posttrain"),
    **dict.fromkeys(("grpo", "ppo", "rlhf", "rlvr"), "rl"),
    **dict.fromkeys(("train", "pre-train"), "pretrain"),
    **dict.fromkeys(("eval", "benchmark"), "evaluate"),
    **dict.fromkeys(("dedup", "deduplicate", "filter", "extract"), "curate"),
    **dict.fromkeys(("ls", "list"), "runs"),
    "convert": "export",
    "distill": "teacher",
    "launch": "submit",
    "validate": "check",
}

VERBS = {
    "curate": Verb(
        "trainrig.corpus.curate:curate",
        "trainrig.corpus.curation_settings:Curation",
        "data",
        "Turn web pages into documents: extract, mask personal data, filter and deduplicate.",
    ),
    "classifier": Verb(
        "trainrig.corpus.models.training:train_classifier",
        "trainrig.corpus.models.training:ClassifierTraining",
        "data",
        "Train a text classifier on wanted and unwanted texts, for `curate` to score with.",
        example="crawl",
    ),
    "ngrams": Verb(
        "trainrig.corpus.models.training:train_language_model",
        "trainrig.corpus.models.training:NgramTraining",
        "data",
        "Train an n-gram language model, for `curate` to compute perplexities with.",
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
    "index": Verb(
        "trainrig.attribution.index_stage:index_tokens",
        "trainrig.attribution.index_run_file:CorpusIndexing",
        "data",
        "Sort training tokens into an index, to find the pages that a text stands in.",
    ),
    "conversations": Verb(
        "trainrig.posttrain.conversations:encode_conversations",
        "trainrig.posttrain.row_run_files:ConversationEncoding",
        "data",
        "Turn conversations, preference pairs, or texts with labels into token shards.",
    ),
    "pretrain": Verb(
        "trainrig.train.pretrain:pretrain",
        "trainrig.train.run_file.run_files:Pretraining",
        "models",
        "Train a model on token shards; run it again to continue after a stop.",
    ),
    "posttrain": Verb(
        "trainrig.posttrain.tuning.fine_tuning:posttrain",
        "trainrig.posttrain.tuning.tuning_run_file:FineTuning",
        "models",
        "Fine-tune a checkpoint on conversations; run it again to continue after a stop.",
    ),
    "teacher": Verb(
        "trainrig.posttrain.stages.teacher_stage:store_teacher",
        "trainrig.posttrain.row_run_files:TeacherScoring",
        "models",
        "Store a teacher's token probabilities on conversations, for `posttrain` to distil.",
        example="distillation",
    ),
    "sample": Verb(
        "trainrig.posttrain.stages.sample_stage:sample_answers",
        "trainrig.posttrain.stages.prompted_run_files:AnswerSampling",
        "models",
        "Sample answers to prompts, score them by rewards, and keep the best to train on.",
        example="distillation",
    ),
    "constitutional": Verb(
        "trainrig.posttrain.stages.constitutional_stage:revise_answers",
        "trainrig.posttrain.stages.prompted_run_files:ConstitutionalChain",
        "models",
        "Have a model criticise, revise and judge its answers by principles.",
        example="constitutional",
    ),
    "rl": Verb(
        "trainrig.rl.reinforcement_stage:reinforce",
        "trainrig.rl.reinforcement_run_file:ReinforcementLearning",
        "models",
        "Train a checkpoint by reinforcement learning; run it again to continue after a stop.",
        example="reinforcement",
    ),
    "score": Verb(
        "trainrig.posttrain.stages.score_stage:score_rows",
        "trainrig.posttrain.row_run_files:AnswerScoring",
        "models",
        "Score answers in files with a reward model, or classify texts.",
        example="preferences",
    ),
    "evaluate": Verb(
        "trainrig.evaluate.evaluation:evaluate",
        "trainrig.evaluate.evaluation_run_file:Evaluation",
        "models",
        "Score a checkpoint on benchmarks, and on held-out text in bits per byte.",
    ),
    "embed": Verb(
        "trainrig.evaluate.engine.embed_stage:embed",
        "trainrig.evaluate.engine.embed_run_file:DocumentEmbedding",
        "models",
        "Compute a vector for each document with a trained model, as Parquet.",
        example="encoder",
    ),
    "sweep": Verb(
        "trainrig.scaling.sweep.sweep:sweep",
        "trainrig.scaling.sweep.sweep_run_file:Sweep",
        "scaling",
        "Train many small models, to fit scaling laws; run it again to continue after a stop.",
    ),
    "mixture": Verb(
        "trainrig.scaling.mixture.mixture_stage:find_mixture",
        "trainrig.scaling.mixture.mixture_run_file:MixtureFinding",
        "scaling",
        "Find a better mixture of sources from small runs on many mixtures (RegMix, mixing laws).",
        example="mixture",
    ),
}
