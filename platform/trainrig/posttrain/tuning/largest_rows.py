"""Shape of the largest micro-batch of a tuning run, which follows from the lengths of its rows.

Rows of a micro-batch are padded to its longest row, so the micro-batch with the longest row of all
takes the most memory. The layout of preference pairs is in objectives/shared_prompts.py.
"""

from dataclasses import dataclass

import numpy as np

from trainrig import manifest, storage
from trainrig.models.architecture.attention_settings import find_maskless_setting
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import DOCUMENT_TARGETS
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards


@dataclass(frozen=True)
class LargestRows:
    """Shape of the largest micro-batch that the model reads at once."""

    rows: int
    length: int  # positions of each row
    # Positions whose logits are in memory at once; None: logits of all positions, block by block.
    places: int | None
    documents: bool = False  # a mask separates the documents of a row
    branches: bool = False  # a mask separates the answers to one prompt

    @property
    def tokens(self) -> int:
        """Number of positions in all rows."""
        return self.rows * self.length

    def __str__(self) -> str:
        """Return the shape in words, such as "8 rows of 512 places"."""
        said = f"{self.rows} rows of {self.length} places"
        return said if self.places is None else f"{said}, logits of {self.places}"


@dataclass(frozen=True)
class _Lengths:
    """Number of tokens, and of tokens with a loss, of each document of all sources."""

    tokens_N: Integers
    targets_N: Integers


def find_largest(run: FineTuning, model: DecoderConfig) -> LargestRows:
    """Return the shape of the largest micro-batch of `run`.

    While its tokenized conversations do not exist yet, every row is taken to have `sequence_length`
    positions, a loss at each of them, and no prompt in common with another row.
    """
    objective = run.objective
    count = run.batches.micro_batch
    longest = run.batches.sequence_length
    lengths = _read_lengths(run)
    if objective.rows == "conversations":
        alone = run.batches.packing == "none" and not run.pretraining
        if alone and lengths is not None:
            longest = min(longest, int(lengths.tokens_N.max()) - 1)
        return LargestRows(count, longest, None, documents=True)
    if objective.rows == "pairs":
        return _find_pairs(run, model, lengths)
    if objective.rows == "labelled":
        if lengths is None:
            return LargestRows(count, longest, count * longest)
        # Batches also join each prompt with another row's answer, which is cut at the row's end.
        mixed = (lengths.tokens_N - lengths.targets_N).max() + lengths.targets_N.max()
        width = min(longest, int(max(lengths.tokens_N.max(), mixed)) - 1)
        return LargestRows(count, width, _sum_largest(lengths.targets_N, count))
    if lengths is not None:
        longest = min(longest, int(lengths.tokens_N.max()))
    if objective.rows == "steps":
        steps = count * longest if lengths is None else _sum_largest(lengths.targets_N, count)
        return LargestRows(count, longest, steps)
    places = count if objective.rows == "classified" else count * longest
    return LargestRows(count, longest, places, documents=model.bidirectional)


def _find_pairs(run: FineTuning, model: DecoderConfig, lengths: _Lengths | None) -> LargestRows:
    """Return the shape of the largest micro-batch of preference pairs.

    Both answers share a row behind one copy of the prompt if the model supports that and it needs
    less attention; otherwise each answer has a row with its own copy of the prompt.
    """
    count = run.batches.micro_batch
    longest = run.batches.sequence_length
    scored = run.objective.head == "score"
    if lengths is None:
        return LargestRows(2 * count, longest, 2 * count if scored else 2 * count * longest)
    sides_2N = lengths.tokens_N.reshape(-1, 2).T - 1
    targets_2N = lengths.targets_N.reshape(-1, 2).T
    places = 2 * count if scored else _sum_largest(targets_2N.sum(0), count)
    width = int(sides_2N.max())
    apart = LargestRows(2 * count, width, places)
    parallel = run.training.parallel
    if (
        find_maskless_setting(model.attention, model.position_embedding)
        or model.bidirectional
        or isinstance(model.feedforward, MixtureOfExperts)
        or (run.lora is not None and run.lora.dropout)
        or parallel.context is not None
        or parallel.pipeline is not None
    ):
        return apart
    from trainrig.objectives.shared_prompts import fill_rows  # torch takes seconds to import

    # Assume that the answers of a pair share the prompt and no first tokens of the answer.
    common_N = np.minimum((sides_2N + 1 - targets_2N).min(0), sides_2N.min(0))
    totals = np.sort(sides_2N.sum(0) - common_N)[::-1][:count].tolist()
    rows = len(fill_rows(totals))
    wide = totals[0]
    if rows * wide**2 >= 2 * count * width**2:
        return apart
    return LargestRows(rows, wide, places, branches=True)


def _read_lengths(run: FineTuning) -> _Lengths | None:
    """Return the lengths of the training rows, or None while they do not exist yet."""
    folder = storage.make_absolute(run.conversations)
    if not storage.exists(storage.join(folder, manifest.MANIFEST)):
        return None
    shards = TokenShards.open(storage.join(folder, TRAIN), run.cache)
    tokens = []
    targets = []
    for source in shards.sources:
        count = shards.count_documents(source)
        tokens.append(np.diff(shards.find_document_starts(source, np.arange(count + 1))))
        targets.append(shards.read_document_values(DOCUMENT_TARGETS, source, np.arange(count)))
    if not tokens:
        return None
    return _Lengths(np.concatenate(tokens), np.concatenate(targets))


def _sum_largest(each_N: Integers, count: int) -> int:
    return int(np.sort(each_N)[::-1][:count].sum())
