"""Pretraining: from a folder of token shards to a run folder with a model in it."""

import functools
import logging
from collections.abc import Mapping

from trainrig import manifest, storage
from trainrig.config import to_toml
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest, Stage
from trainrig.models.decoder import count_parameters
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.mixing.pretraining import PretrainBatches
from trainrig.tokens.mixing.stages import BatchSettings
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.train import checkpoint, metrics, trainer
from trainrig.train.run import Pretraining
from trainrig.train.run_folder import RunFolder
from trainrig.train.state import Job

log = logging.getLogger(__name__)


def pretrain(run: Pretraining) -> Manifest:
    """Train to the end of `run`, going on where an earlier call stopped; the run folder's manifest.

    Raises InputError for what cannot work, before any worker starts; ClusterError when workers
    fail more often than the run allows.
    """
    tokens = manifest.read_input(run.tokens, "tokenize")
    job = prepare(run)
    stage = manifest.claim(job.folder, run, {"tokens": tokens.content})
    if stage.finished:
        return stage.finished
    with stage.undone_if_refused():
        newest, _ = checkpoint.newest_valid(RunFolder(job.folder))
        if newest:
            checkpoint.check_data(newest.path, job.make_batches())
        trainer.check_fit(run.workers)
    storage.write(stage.path("run.toml"), to_toml(run).encode())
    outcome = trainer.run(job, run.workers)
    return finish(stage, job, outcome)


def prepare(run: Pretraining) -> Job:
    """The job that `run` describes.

    Raises InputError if its parts do not fit each other, or if there is not enough data.
    """
    tokens = storage.absolute(run.tokens)
    tokenizer = storage.read(storage.join(tokens, "tokenizer.json")).decode()
    encoder = Encoder(tokenizer)
    run.training.schedule.warmup_steps(run.training.steps)
    batches = open_batches(tokens, run.batches, run.cache)
    batches.check_epochs(run.training.steps)
    for source in batches.left_out:
        log.warning(
            "%s: source '%s' is left out: it has not one window of %d tokens",
            run.tokens,
            source,
            run.batches.longest_length + 1,
        )
    return Job(
        folder=storage.absolute(run.output),
        model=run.model.for_tokenizer(encoder.vocabulary_size),
        training=run.training,
        make_batches=functools.partial(open_batches, tokens, run.batches, run.cache),
        tokenizer=tokenizer,
    )


def open_batches(
    tokens: str, settings: BatchSettings, cache: BlockCache | None = None
) -> PretrainBatches:
    """The batches of the training split of the folder `tokens`; `cache`: for one in a bucket."""
    shards = TokenShards.open(storage.join(tokens, TRAIN), cache)
    return PretrainBatches(shards, settings, cache)


def finish(
    stage: Stage, job: Job, outcome: trainer.Outcome, counted: Mapping[str, int] | None = None
) -> Manifest:
    """Write the manifest of a run folder whose last checkpoint is whole, with `counted` in it."""
    losses = metrics.series(job.folder)
    if not losses:
        raise DataError(f"{job.folder}/{metrics.METRICS}: gone, though the run is at its end")
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
    return stage.finish(counts, _sums(stage, outcome.checkpoint.path))


def _sums(stage: Stage, checkpoint: str) -> dict[str, FileSum]:
    """Of the last checkpoint alone: events and metrics hold times, which no fingerprint should."""
    paths = [*storage.list_files(checkpoint), stage.path("run.toml")]
    return {path.removeprefix(f"{stage.folder}/"): manifest.file_sum(path) for path in paths}
