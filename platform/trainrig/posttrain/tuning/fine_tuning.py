"""Fine-tuning on conversations and preferences, with the training loop of pretraining."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import Manifest
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.posttrain.model_source import is_hub_folder, open_initial_model
from trainrig.posttrain.tuning import conversation_batches, preference_rows, teacher_probabilities
from trainrig.posttrain.tuning.classified_batches import open_texts, read_labels
from trainrig.posttrain.tuning.largest_rows import find_largest
from trainrig.posttrain.tuning.references import compute_references, find_reference
from trainrig.posttrain.tuning.tuning_comparison import TuningComparison
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.evaluations import ModelComparison, compare_nothing
from trainrig.train.held_out_loss import HeldOutSets, hold_nothing_out, open_held_out_conversations
from trainrig.train.pretrain import drive
from trainrig.train.run_file.run_file_checks import check_positions, check_sums
from trainrig.train.run_start import claim_run
from trainrig.train.training_job import Adapter, FrozenModel, TrainingJob


def posttrain(run: FineTuning) -> Manifest:
    """Fine-tune to the end of `run`, resuming where an earlier call stopped.

    Raises InputError for settings that cannot work, before any worker starts, and ClusterError when
    workers fail more often than the run allows.
    """
    job, inputs, counted = prepare(run)
    stage = claim_run(job.folder, run, run.training, inputs)
    if stage.finished:
        return stage.finished
    if preference_rows.needs_references(run):
        folder = storage.make_absolute(run.conversations)
        length = run.batches.sequence_length
        start = job.adapter.base if job.adapter else job.initial_weights
        assert start is not None
        reference = _find_reference(run, start, Encoder.of(checkpoint.read_tokenizer_files(start)))
        compute_references(folder, reference, length, run.cache)
    if job.adapter:
        checkpoint.keep_base(job.adapter, job.folder)
    return drive(stage, run, job, run.workers, counted)


def prepare(run: FineTuning) -> tuple[TrainingJob, dict[str, str], dict[str, int]]:
    """Build the training job of `run`; return it with its input fingerprints and counts."""
    written = manifest.read_input(run.conversations, "conversations")
    path = open_initial_model(
        storage.make_absolute(run.checkpoint), storage.make_absolute(run.output)
    )
    model, tokenizer = checkpoint.describe(path)
    encoder = Encoder.of(checkpoint.read_tokenizer_files(path))
    if checkpoint.read_adapter(path, checkpoint.read_entries(path)):
        raise ConfigError(
            f"checkpoint: {path} holds an adapter alone; merge it with its base by `trainrig "
            "export`, and name the folder that it writes"
        )
    model = _add_head(run, path, model, written.counts)
    _check(run, model)
    folder = storage.make_absolute(run.conversations)
    pretraining = run.pretraining and run.pretraining.model_copy(
        update={"tokens": storage.make_absolute(run.pretraining.tokens)}
    )
    taught = _check_teacher(run, written)
    rows = _open_rows(run, path, folder, encoder, pretraining)
    batches = rows.make_batches()
    if batches.shards.vocabulary.fingerprint != encoder.fingerprint:
        raise ConfigError(
            f"conversations: {run.conversations} was made with another tokenizer than the one "
            f'of {run.checkpoint}; run `conversations` with tokenizer = "{run.checkpoint}"'
        )
    batches.check_epochs(run.training.steps)
    job = TrainingJob(
        folder=storage.make_absolute(run.output),
        model=model,
        training=run.training.make_paths_absolute(),
        make_batches=rows.make_batches,
        tokenizer=tokenizer,
        beside={**encoder.files.beside, **TokenizerFiles.read(folder).beside},
        objective=run.objective,
        initial_weights=None if run.lora else path,
        adapter=Adapter(run.lora, path, checkpoint.compute_manifest_sum(path))
        if run.lora
        else None,
        frozen=rows.frozen,
        make_held_out=rows.make_held_out,
        make_comparison=_build_comparison(run, rows.kind, folder, encoder),
        tokens_at_once=find_largest(run, model).tokens,
    )
    job.check_budget()
    inputs = {"checkpoint": checkpoint.compute_content_key(path), "conversations": written.content}
    if pretraining:
        inputs["pretraining"] = manifest.read_input(pretraining.tokens, "tokenize").content
    if run.reference:
        inputs["reference"] = checkpoint.compute_content_key(_find_reference(run, path, encoder))
    if taught:
        inputs["teacher"] = taught.content
    kind = rows.kind
    # The word "steps" in progress counts always means training steps.
    counted = {"solutions" if kind == "steps" else kind: written.counts[f"train_{kind}"]}
    if run.lora:
        # Imported here, so that a run without adapters does not wait for torch.
        from trainrig.models.lora import count_adapter

        counted["parameters_trained"] = count_adapter(model, run.lora)
    return job, inputs, counted


def _add_head(
    run: FineTuning, path: str, model: DecoderConfig, counts: Mapping[str, Any]
) -> DecoderConfig:
    """Return `model` with the head that the objective needs.

    Scoring and whole-text objectives need a head of their own, initialised anew if the model has
    none. `counts` are those of the rows, with their labels. Raises ConfigError for a model that
    cannot learn the objective.
    """
    if isinstance(model, EncoderDecoderConfig):
        raise ConfigError(
            f"checkpoint: {path} has an encoder and a decoder, which objective "
            f"{run.objective.kind} can't train; name a decoder"
        )
    head = run.objective.head
    if head == "spans":
        if not model.bidirectional:
            raise ConfigError(
                f"checkpoint: {path} is a decoder, whose tokens do not see the text after "
                f"them, so objective {run.objective.kind} can't train it; name an encoder"
            )
        return model.with_head("spans")
    if head == "classes":
        labels = read_labels(counts)
        if not labels:
            raise ConfigError(
                f"conversations: {run.conversations} has no labels; run `trainrig conversations` "
                'with rows = "classified"'
            )
        return model.with_head("classes", labels)
    if head == "score" and not model.bidirectional:
        return model.with_score_head()
    if model.bidirectional:
        raise ConfigError(
            f"checkpoint: {path} is an encoder, which generates no text, so objective "
            f"{run.objective.kind} can't train it; name a decoder"
        )
    if model.head != "tokens":
        raise ConfigError(
            f"checkpoint: {path} is {model.description}, which generates no text, so "
            f"objective {run.objective.kind} can't train it; name a language model"
        )
    return model


def _check_teacher(run: FineTuning, conversations: Manifest) -> Manifest | None:
    """Return the manifest of the teacher's folder, or None without a teacher.

    Raises InputError if the folder does not fit.
    """
    if not run.teacher:
        return None
    return teacher_probabilities.check_teacher(
        run.teacher, conversations, run.objective.teacher_temperature
    )


def _find_reference(run: FineTuning, start: str, encoder: Encoder) -> str:
    return find_reference(run.reference, start, encoder, run.batches.sequence_length)


def _open_rows(
    run: FineTuning,
    start: str,
    folder: str,
    encoder: Encoder,
    pretraining: conversation_batches.PretrainingShare | None,
) -> preference_rows.TuningRows:
    padding = encoder.special_tokens.padding
    if run.teacher:
        teacher = storage.make_absolute(run.teacher)
        sizes = run.batches
        taught = functools.partial(
            teacher_probabilities.open_taught, folder, sizes, padding, teacher, run.cache
        )
        return preference_rows.TuningRows(
            "conversations", taught, _build_held_out(run, folder, padding, teacher)
        )
    if run.objective.rows in ("classified", "questions"):
        return open_texts(run, folder, padding)
    if run.objective.rows != "conversations":
        return preference_rows.open_rows(run, folder, padding, _find_reference(run, start, encoder))
    make = functools.partial(
        open_conversations, folder, run.batches, padding, run.cache, pretraining
    )
    return preference_rows.TuningRows("conversations", make, _build_held_out(run, folder, padding))


def _build_comparison(
    run: FineTuning, kind: str, folder: str, encoder: Encoder
) -> Callable[[], ModelComparison | None]:
    """Return a factory of the comparison of the model before and after training.

    A model that scores generates no text, so there is nothing to compare. Raises ConfigError for
    text of another tokenizer.
    """
    if run.objective.scores():
        return compare_nothing
    asked = run.comparison
    text = run.comparison.text
    if text is None and run.pretraining:
        text = run.pretraining.tokens
    if text is not None:
        text = storage.make_absolute(text)
        manifest.read_input(text, "tokenize")
        held_out = TokenShards.open(storage.join(text, HELD_OUT), run.cache)
        if held_out.vocabulary.fingerprint != encoder.fingerprint:
            raise ConfigError(
                f"comparison.text: {text} was made with another tokenizer than the one of "
                f"{run.checkpoint}; tokenize it with that one"
            )
    # Each new token has another shape, which would be compiled again. Ranks that hold parts of
    # layers or rows cannot answer prompts.
    if run.training.compile or run.training.parallel.replica > 1:
        asked = asked.model_copy(update={"prompts": 0})
    return functools.partial(
        TuningComparison,
        settings=asked,
        folder=folder,
        text=text,
        encoder=encoder,
        sequence_length=run.batches.sequence_length,
        per_row=2 if kind == "pairs" else 1,
        gather_once=run.training.parallel.reshard == "step",
        cache=run.cache,
    )


def find_models(
    run: FineTuning,
) -> tuple[DecoderConfig, Mapping[str, FrozenModel], dict[str, int]] | None:
    """Return the tuned model of `run`, its frozen models, and counts of rows and parameters.

    The counts are empty while there are no conversations. None while the model does not exist, or
    is a Hugging Face folder that is not imported yet. Raises InputError for settings that do not
    fit together.
    """
    check_sums(run.training, run.workers, [run.batches.global_batch // run.batches.micro_batch])
    if not storage.find_first(run.checkpoint) or is_hub_folder(run.checkpoint):
        return None
    if storage.exists(storage.join(run.conversations, manifest.MANIFEST)):
        job, _inputs, counted = prepare(run)
        return job.model, job.frozen, counted
    path = checkpoint.resolve(run.checkpoint)
    model = checkpoint.describe(path)[0]
    # The size of a classification head depends on the labels, which are unknown here.
    if run.objective.rows not in ("classified", "questions"):
        model = _add_head(run, path, model, {})
    _check(run, model)
    frozen: Mapping[str, FrozenModel] = {}
    if run.objective.reference_use == "beside":
        encoder = Encoder.of(checkpoint.read_tokenizer_files(path))
        frozen = preference_rows.find_frozen(run, _find_reference(run, path, encoder))
    return model, frozen, {}


def assume_model(run: FineTuning, model: DecoderConfig) -> DecoderConfig:
    """Return `model` with the head that `run` needs, as if it were the model of its checkpoint.

    Raises InputError for settings that do not fit together.
    """
    check_sums(run.training, run.workers, [run.batches.global_batch // run.batches.micro_batch])
    if run.objective.rows not in ("classified", "questions"):
        model = _add_head(run, run.checkpoint, model, {})
    _check(run, model)
    return model


def _check(run: FineTuning, model: DecoderConfig) -> None:
    try:
        check_positions(run.batches.sequence_length, model)
    except ValueError as error:
        raise ConfigError(f"batches: {error}") from None
    if run.lora and run.lora.dropout and isinstance(model.feedforward, MixtureOfExperts):
        raise ConfigError(
            "lora.dropout: dropout depends on the row of each token, which experts do not "
            "know; leave it out for a mixture of experts"
        )
    run.training.schedule.warmup_steps(run.training.steps)
    run.training.check_workers(run.workers)
    run.training.check_parameters(model)
    try:
        run.check_layouts(model)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def open_conversations(
    folder: str,
    sizes: conversation_batches.ConversationBatching,
    padding: int,
    cache: BlockCache | None = None,
    pretraining: conversation_batches.PretrainingShare | None = None,
) -> conversation_batches.ConversationBatches:
    """Open the training batches of a folder that `conversations` wrote.

    `padding` is the token id that fills rows up.
    """
    shards = TokenShards.open(storage.join(folder, TRAIN), cache)
    return conversation_batches.ConversationBatches(shards, sizes, padding, cache, pretraining)


def _build_held_out(
    run: FineTuning, folder: str, padding: int, teacher: str | None = None
) -> Callable[[], HeldOutSets | None]:
    rows = run.training.held_out.rows
    length = run.batches.sequence_length
    shards = TokenShards.open(storage.join(folder, HELD_OUT), run.cache)
    if rows == 0 or not shards.sources:
        return hold_nothing_out
    if teacher:
        return functools.partial(
            teacher_probabilities.open_held_out_taught,
            folder,
            length,
            padding,
            rows,
            teacher,
            run.cache,
        )
    return functools.partial(open_held_out_conversations, folder, length, padding, rows, run.cache)
