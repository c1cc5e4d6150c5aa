"""The largest micro-batch that a tuning run may come to read, from the lengths of its rows alone.

Rows of a micro-batch are as wide as its longest, so what the longest row of all is in takes the
most. Of pairs see objectives/shared_prompts.py.
"""

from dataclasses import dataclass

import numpy as np

from trainrig import manifest, storage
from trainrig.models.architecture.attention import takes_no_mask
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives import (
    KTO,
    SFT,
    AnswerSpan,
    Classification,
    Distillation,
    Pairwise,
    ProcessReward,
    Reward,
)
from trainrig.posttrain.run_file import FineTuning
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import DOCUMENT_TARGETS
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards


@dataclass(frozen=True)
class LargestRows:
    """What the model is given at once."""

    rows: int
    length: int  # places of each
    places: int | None  # whose logits are there all at once; None: of all places, in blocks
    documents: bool = False  # whether a mask keeps texts of a row apart
    branches: bool = False  # whether a mask keeps answers to one prompt apart

    @property
    def tokens(self) -> int:
        """Places of all rows."""
        return self.rows * self.length

    def __str__(self) -> str:
        """For people."""
        said = f"{self.rows} rows of {self.length} places"
        return said if self.places is None else f"{said}, logits of {self.places}"


@dataclass(frozen=True)
class _Lengths:
    """Tokens of each document of all sources, and those that are learnt of it."""

    tokens_N: Integers
    targets_N: Integers


def find_largest(run: FineTuning, model: DecoderConfig) -> LargestRows:
    """The largest micro-batch of `run`; while its conversations are not there, of rows as long as
    `sequence_length`, each learnt whole and read by itself."""
    objective, count, longest = run.objective, run.batches.micro_batch, run.batches.sequence_length
    lengths = _read_lengths(run)
    if isinstance(objective, SFT | Distillation):
        alone = run.batches.packing == "none" and not run.pretraining
        if alone and lengths is not None:
            longest = min(longest, int(lengths.tokens_N.max()) - 1)
        return LargestRows(count, longest, None, documents=True)
    if isinstance(objective, Pairwise | Reward):
        return _find_pairs(run, model, lengths)
    if isinstance(objective, KTO):
        if lengths is None:
            return LargestRows(count, longest, count * longest)
        # Each prompt also stands before another row's answer, which is cut where a row ends.
        mixed = (lengths.tokens_N - lengths.targets_N).max() + lengths.targets_N.max()
        width = min(longest, int(max(lengths.tokens_N.max(), mixed)) - 1)
        return LargestRows(count, width, _sum_largest(lengths.targets_N, count))
    if lengths is not None:
        longest = min(longest, int(lengths.tokens_N.max()))
    if isinstance(objective, ProcessReward):
        steps = count * longest if lengths is None else _sum_largest(lengths.targets_N, count)
        return LargestRows(count, longest, steps)
    assert isinstance(objective, Classification | AnswerSpan)
    places = count if isinstance(objective, Classification) else count * longest
    return LargestRows(count, longest, places, documents=model.bidirectional)


def _find_pairs(run: FineTuning, model: DecoderConfig, lengths: _Lengths | None) -> LargestRows:
    """Both answers of each pair in a row after one reading of the prompt, where the model can and
    that is less to look at; else a row each."""
    count, longest = run.batches.micro_batch, run.batches.sequence_length
    scored = isinstance(run.objective, Reward)
    if lengths is None:
        return LargestRows(2 * count, longest, 2 * count if scored else 2 * count * longest)
    sides_2N = lengths.tokens_N.reshape(-1, 2).T - 1
    targets_2N = lengths.targets_N.reshape(-1, 2).T
    places = 2 * count if scored else _sum_largest(targets_2N.sum(0), count)
    width = int(sides_2N.max())
    apart = LargestRows(2 * count, width, places)
    parallel = run.training.parallel
    if (
        takes_no_mask(model.attention, model.position_embedding)
        or model.bidirectional
        or isinstance(model.feedforward, MixtureOfExperts)
        or (run.lora is not None and run.lora.dropout)
        or parallel.context is not None
        or parallel.pipeline is not None
    ):
        return apart
    from trainrig.objectives.shared_prompts import fill_rows  # torch takes seconds to import

    # Prompts are alike; that answers begin alike, too, is not looked for.
    common_N = np.minimum((sides_2N + 1 - targets_2N).min(0), sides_2N.min(0))
    totals = np.sort(sides_2N.sum(0) - common_N)[::-1][:count].tolist()
    rows, wide = len(fill_rows(totals)), totals[0]
    if rows * wide**2 >= 2 * count * width**2:
        return apart
    return LargestRows(rows, wide, places, branches=True)


def _read_lengths(run: FineTuning) -> _Lengths | None:
    """Those of the rows to train on; None while they are not there."""
    folder = storage.make_absolute(run.conversations)
    if not storage.exists(storage.join(folder, manifest.MANIFEST)):
        return None
    shards = TokenShards.open(storage.join(folder, TRAIN), run.cache)
    tokens, targets = [], []
    for source in shards.sources:
        count = shards.count_documents(source)
        tokens.append(np.diff(shards.find_document_starts(source, np.arange(count + 1))))
        targets.append(shards.read_document_values(DOCUMENT_TARGETS, source, np.arange(count)))
    if not tokens:
        return None
    return _Lengths(np.concatenate(tokens), np.concatenate(targets))


def _sum_largest(each_N: Integers, count: int) -> int:
    return int(np.sort(each_N)[::-1][:count].sum())
