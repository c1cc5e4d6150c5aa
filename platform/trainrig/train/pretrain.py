"""The `pretrain` verb: from a folder of token shards to a run folder with a trained model."""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from trainrig import manifest, storage
from trainrig.config import RunFile, to_toml, with_absolute_paths
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import FileSum, Manifest, Stage
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.objectives.objective_interface import Corrupting, find_corruption
from trainrig.parallel.axes.pipeline_schedule import compute_idle_share
from trainrig.parallel.layer_compilation import check_compiler
from trainrig.processes import lease
from trainrig.storage.writable import check_folder
from trainrig.tokens.batches import Corruption, MicroBatch
from trainrig.tokens.rows.batch_stages import BatchSettings
from trainrig.tokens.rows.masked_documents import MaskedDocuments, read_masked_documents
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint, run_start
from trainrig.train.held_out_loss import HeldOutSets, RowSizes, hold_nothing_out, open_held_out
from trainrig.train.run import metrics
from trainrig.train.run.alarm_rules import find_repetition_alarms
from trainrig.train.run.alarms import watch_alarms
from trainrig.train.run.checkpoint_scores import check_evaluations
from trainrig.train.run.export import export_figures
from trainrig.train.run.planned_loss import parse_prediction
from trainrig.train.run.run_folder import PLAN, RunFolder
from trainrig.train.run_file.run_file_checks import build_model_stages
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.worker_settings import parse_bounds
from trainrig.train.training_job import TrainingJob

if TYPE_CHECKING:
    from trainrig.train.elastic.supervise import TrainingResult

log = logging.getLogger(__name__)


def pretrain(run: Pretraining) -> Manifest:
    """Train to the end of `run`, or resume an earlier call; return the run folder's manifest.

    Raises InputError for a run that cannot work, before any worker starts; ClusterError if workers
    fail more often than the run allows.
    """
    tokens = manifest.read_input(run.tokens, "tokenize")
    for folder in run.remembered:
        manifest.read_input(folder, "tokenize")
    job = prepare(run)
    plan = _read_plan(run, job.folder)
    inputs = list_inputs(run, job, tokens, read_masks(run))
    stage = run_start.claim_run(
        job.folder,
        run,
        run.training,
        inputs,
        micro_batch_may_change=_is_mean_over_tokens(run, job.model),
    )
    if stage.finished:
        return stage.finished
    if plan:
        storage.write(stage.build_path(PLAN), plan)
    if job.initial_weights and not stage.resumed:
        run_start.warn_of_high_rate(job.initial_weights, run.training.optimizer.lr)
    return drive(stage, run, job, run.workers)


def list_inputs(
    run: Pretraining, job: TrainingJob, tokens: Manifest, masked: MaskedDocuments | None
) -> dict[str, str]:
    """Return the fingerprint of each input of `run`, by its role."""
    inputs = {"tokens": tokens.content}
    if job.initial_weights:
        inputs["continue_from"] = checkpoint.compute_content_key(job.initial_weights)
    if masked:
        inputs["masked_documents"] = masked.sha256
    return inputs


def read_masks(run: Pretraining) -> MaskedDocuments | None:
    """Read the masked documents that `run` names; return None if it names none."""
    return None if run.masked_documents is None else read_masked_documents(run.masked_documents)


def prepare(run: Pretraining, masked: MaskedDocuments | None = None) -> TrainingJob:
    """Build the job that `run` describes.

    Logs a warning for each source that is too short to use. `masked`: content of the file
    `run.masked_documents`, if it is not written yet. Raises InputError if the parts of the run do
    not fit each other, or if there is not enough data.
    """
    tokens = storage.make_absolute(run.tokens)
    tokenizer = manifest.read_file(tokens, "tokenizer.json").decode()
    files = TokenizerFiles.read(tokens)
    encoder = Encoder(tokenizer, files.where, files.beside)
    run.training.schedule.warmup_steps(run.training.steps)
    run.training.check_workers(run.workers)
    corruption = find_corruption(run.objective, encoder, run.batches.longest_length)
    masked = masked or read_masks(run)
    make_batches = functools.partial(
        open_batches, tokens, run.batches, run.cache, corruption, masked
    )
    batches = make_batches()
    epochs = batches.check_epochs(run.training.steps)
    for source in batches.left_out:
        log.warning(
            "%s: source '%s' is left out: it has no window of %d tokens",
            run.tokens,
            source,
            run.batches.longest_length + 1,
        )
    model, weights = _begin(run, encoder)
    run.training.check_parameters(model)
    for line in describe_waits(run):
        log.warning("%s", line)
    job = TrainingJob(
        folder=storage.make_absolute(run.output),
        model=model,
        training=run.training.make_paths_absolute(),
        make_batches=make_batches,
        tokenizer=tokenizer,
        beside=checkpoint.read_tokenizer_files(weights).beside if weights else files.beside,
        objective=run.objective,
        initial_weights=weights,
        measures_beginning=weights is not None,
        new_levels=_find_new_levels(run),
        model_stages=build_model_stages(model, run.context),
        epochs=epochs,
        make_held_out=_prepare_held_out(run, tokens, encoder, corruption),
        tokens_at_once=count_tokens_at_once(run),
        compiles_on_gpus=_is_dense_decoder(model),
    )
    job.check_budget()
    return job


def _is_mean_over_tokens(run: Pretraining, model: DecoderConfig) -> bool:
    """Return whether the loss of a batch does not depend on which rows share a micro-batch.

    It does for a mixture of experts, which balances its load over a micro-batch, and for
    corruptions, which are assigned to micro-batches.
    """
    return not isinstance(run.objective, Corrupting) and not isinstance(
        model.feedforward, MixtureOfExperts
    )


def count_tokens_at_once(run: Pretraining) -> int:
    """Return the number of tokens in the largest micro-batch of `run`, padding included."""
    return max(
        stage.micro_batch * compute_widest_row(run.objective, stage.sequence_length)
        for stage in run.batches.resolve_stages()
    )


def _is_dense_decoder(model: DecoderConfig) -> bool:
    sparse = isinstance(model.feedforward, MixtureOfExperts)
    return type(model) is DecoderConfig and not sparse and not model.further_heads


def describe_waits(run: Pretraining) -> list[str]:
    """Return a warning for each batch stage with too few micro-batches to fill the pipeline."""
    parallel = run.training.parallel
    found = list[str]()
    if parallel.pipeline is None:
        return found
    replicas = parallel.data_workers(parse_bounds(run.workers).most)
    for stage in run.batches.resolve_stages():
        count = stage.global_batch // stage.micro_batch // replicas
        ranks = parallel.pipeline_ranks
        if count < ranks:
            share = compute_idle_share(ranks, max(count, 1), parallel.pipeline_chunks)
            found.append(
                f"training.parallel.pipeline: {ranks} stages for {count} micro-batches "
                f"of a replica: each waits for {share:.0%} of a step; use a smaller micro_batch, "
                "or fewer stages"
            )
    return found


def _find_new_levels(run: Pretraining) -> tuple[int, ...]:
    """Return the data steps at which the batch settings or the model's positions change."""
    batches = (stage.from_step for stage in run.batches.resolve_stages())
    steps = {*batches, *(stage.from_step for stage in run.context)}
    return tuple(sorted(steps - {0}))


def _read_plan(run: Pretraining, folder: str) -> bytes | None:
    """Read the plan that `run` names, or its copy in the run folder.

    Returns None if the run names no plan. Raises ConfigError if both files are missing.
    """
    if run.plan is None:
        return None
    for path in (run.plan, storage.join(folder, PLAN)):
        if storage.exists(path):
            data = storage.read(path)
            parse_prediction(data, path)  # fail now rather than in the report at the end of the run
            return data
    raise ConfigError(
        f"plan: {run.plan} does not exist; leave it out, or run `trainrig plan` again"
    )


def _begin(run: Pretraining, encoder: Encoder) -> tuple[DecoderConfig, str | None]:
    """Return the model, and the checkpoint it starts with, or None for random weights."""
    if run.continue_from is None:
        assert run.model is not None  # the validation of the run file ensures it
        model = run.model.for_tokenizer(encoder.vocabulary_size)
        try:
            run.check_layouts(model)  # again, now that the vocabulary size is known
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return model, None
    begun = run_start.find_initial_weights(run.continue_from, run.tokens, encoder, run.model)
    model = begun.model
    heads = run.objective.further_heads
    try:
        run.check_positions(model)
    except ValueError as error:
        raise ConfigError(f"batches: {error}") from None
    try:
        if heads and not model.bidirectional and not isinstance(model, EncoderDecoderConfig):
            model = model.with_further_heads(heads)
        run.check_objective(model)
        run.check_layouts(model)
    except ValueError as error:
        raise ConfigError(f"continue_from: {begun.path}: {error}") from None
    if not run.convert:
        return model, begun.path
    return _convert(begun.path, model), begun.path


def _convert(path: str, model: DecoderConfig) -> EncoderConfig:
    """Return the encoder that the decoder at `path` becomes; log what changes."""
    if model.bidirectional:
        raise ConfigError(f"convert: {path} is an encoder already; leave it out")
    if isinstance(model, EncoderDecoderConfig):
        raise ConfigError(f"convert: {path} has an encoder and a decoder; name a decoder's")
    if model.head != "tokens":
        raise ConfigError(
            f"convert: {path} is {model.description}; name the decoder it was made of"
        )
    window = model.attention.window
    local = "" if window is None else f", as far as {window.size - 1} places in local layers"
    log.warning(
        "%s: the decoder becomes an encoder: each token also sees later tokens%s, and "
        "the head predicts the token itself instead of the next one; all weights are kept",
        path,
        local,
    )
    return EncoderConfig.from_decoder(model)


def _prepare_held_out(
    run: Pretraining, tokens: str, encoder: Encoder, corruption: Corruption | None
) -> Callable[[], HeldOutSets | None]:
    """Return the function that opens the held-out rows on a rank.

    Logs a warning if the run asks for held-out rows and the tokens have none.
    """
    if run.training.held_out.rows == 0:
        return hold_nothing_out
    sizes = RowSizes(
        rows=run.training.held_out.rows,
        length=run.batches.sequence_length,
        micro_batch=run.batches.micro_batch,
        by_document=run.batches.attend == "document",
    )
    make: Callable[[], HeldOutSets | None]
    make = functools.partial(open_held_out_split, tokens, sizes, run.cache, corruption)
    if make() is None:
        log.warning(
            "%s: nothing is held out, so no held-out loss will be measured; tokenize with a larger "
            "`held_out`, or set training.held_out.rows = 0",
            run.tokens,
        )
        return hold_nothing_out
    if run.remembered:
        folders = tuple(storage.make_absolute(folder) for folder in run.remembered)
        for folder in folders:
            theirs = Encoder(manifest.read_file(folder, "tokenizer.json").decode())
            if theirs.fingerprint != encoder.fingerprint:
                raise DataError(
                    f"remembered: {folder}: tokens of another tokenizer than {run.tokens}; "
                    f"tokenize its documents with {tokens}/tokenizer.json"
                )
        make = functools.partial(_add_remembered, make, folders, sizes, run.cache, corruption)
        make()  # open them once here, to report missing data before the start
    return make


def _add_remembered(
    make: Callable[[], HeldOutSets | None],
    folders: tuple[str, ...],
    sizes: RowSizes,
    cache: BlockCache,
    corruption: Corruption | None,
) -> HeldOutSets | None:
    """Open the held-out rows of `make`, and of the earlier data in `folders`.

    The sources of the latter are named FOLDER/SOURCE. Raises DataError for a folder without
    held-out rows, and ConfigError if two folders have the same name.
    """
    sets = make()
    assert sets is not None
    sources: list[str] = []
    batches: list[MicroBatch] = []
    for folder in folders:
        found = open_held_out_split(folder, sizes, cache, corruption)
        if found is None:
            raise DataError(
                f"remembered: {folder}: nothing is held out; tokenize it with a larger `held_out`"
            )
        names = [f"{PurePosixPath(folder).name}/{source}" for source in found.sources]
        if twice := {*names} & {*sources}:
            raise ConfigError(f"remembered: two folders have the name of {sorted(twice)[0]!r}")
        batches += [replace(b, sources=b.sources + len(sources)) for b in found.batches]
        sources += names
    return replace(sets, remembered=HeldOutSets(tuple(sources), tuple(batches)))


def open_held_out_split(
    tokens: str, sizes: RowSizes, cache: BlockCache, corruption: Corruption | None = None
) -> HeldOutSets | None:
    """Open the held-out rows of the folder `tokens`, with `corruption` applied to them.

    Returns None if the folder has no held-out rows.
    """
    sets = open_held_out(TokenShards.open(storage.join(tokens, HELD_OUT), cache), sizes)
    if not sets.sources:
        return None
    return sets if corruption is None else sets.corrupt(corruption)


def open_batches(
    tokens: str,
    settings: BatchSettings,
    cache: BlockCache | None = None,
    corruption: Corruption | None = None,
    masked: MaskedDocuments | None = None,
) -> PretrainBatches:
    """Open the training batches of the folder `tokens`.

    `cache`: local cache, for a folder in a bucket. `corruption`: how the objective changes the
    rows. `masked`: documents that are not trained on.
    """
    shards = TokenShards.open(storage.join(tokens, TRAIN), cache)
    return PretrainBatches(shards, settings, cache, corruption=corruption, masked=masked)


def drive(
    stage: Stage,
    run: RunFile,
    job: TrainingJob,
    workers: int | tuple[int, int],
    counted: Mapping[str, int] | None = None,
) -> Manifest:
    """Train `job` to its end in the claimed folder `stage`, as the only driver of the run.

    `counted`: further counts for the manifest. Raises InputError for a run that cannot work, before
    any worker starts.
    """
    # Imported here, so that a run refused before this point need not wait for torch.
    from trainrig.train.elastic import trainer

    with lease.hold_lease(job.folder):
        run_start.check_claim_stands(stage)
        with stage.undo_if_refused():
            copy = job.training.checkpoints.copy_to
            # once the run has started, a failing copy does not end it
            if copy and not stage.resumed:
                check_folder(copy)
            newest, _ = checkpoint.find_newest_valid(
                RunFolder(job.folder), thorough=False, copy=copy
            )
            if newest:
                checkpoint.check_data(newest.path, job.make_batches())
                checkpoint.check_context(newest.path, checkpoint.read_entries(newest.path), job)
            check_evaluations(job.training)
            run_start.check_disk_space(job)
            check_compiler(job.training.compile)
            for sink in job.training.metrics.sinks:
                sink.check(job.folder)
            wait = job.training.faults.wait_for_nodes
            trainer.check_fit(workers, job.extra_actors, wait)
            trainer.warn_of_emulation(job.training.precision)
        storage.write(stage.build_path("run.toml"), to_toml(with_absolute_paths(run)).encode())
        # Imported here: each worker imports this module and need not load matplotlib.
        from trainrig.train.run_report.run_page import report_at_end

        training = job.training
        alarms = find_repetition_alarms(job.epochs)
        with (
            # around the report, which is attached
            export_figures(job.folder, training.metrics.sinks, training.spikes),
            report_at_end(job.folder),
            watch_alarms(job.folder, training.steps, alarms),
        ):
            outcome = trainer.run(job, workers)
        return finish(stage, job, outcome, counted)


def finish(
    stage: Stage,
    job: TrainingJob,
    outcome: "TrainingResult",
    counted: Mapping[str, int] | None = None,
) -> Manifest:
    """Write the manifest of a run folder whose last checkpoint is complete.

    `counted`: further counts for the manifest, by name. Raises DataError if the metrics are gone.
    """
    losses = metrics.read_series(job.folder)
    if not losses:
        raise DataError(f"{job.folder}/{metrics.METRICS}: missing, though the run is at its end")
    counts = {
        "steps": outcome.checkpoint.step,
        "train_tokens": losses[-1]["train/tokens"],
        "parameters": count_parameters(job.model).total,
        "loss_first": losses[0]["train/loss"],
        "loss_last": losses[-1]["train/loss"],
        "restarts": outcome.restarts,
        "checkpoint": outcome.checkpoint.path.removeprefix(f"{job.folder}/"),
        **(counted or {}),
    }
    return stage.finish(counts, _compute_sums(stage, outcome.checkpoint.path))


def _compute_sums(stage: Stage, path: str) -> dict[str, FileSum]:
    """Return the checksums of the last checkpoint's files and of run.toml, by relative path.

    Events and metrics are left out: they hold times, which must not change a fingerprint.
    """
    found = checkpoint.read_verified_sums(path) or {}
    known = {storage.join(path, name): file_sum for name, file_sum in found.items()}
    files = [*storage.list_files(path), stage.build_path("run.toml")]
    return {
        file.removeprefix(f"{stage.folder}/"): known.get(file) or manifest.compute_file_sum(file)
        for file in files
        if file != storage.join(path, checkpoint.VERIFIED)  # only some checkpoints have this file
    }
