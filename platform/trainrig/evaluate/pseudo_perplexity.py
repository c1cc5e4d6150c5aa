"""Pseudo-perplexity: how well an encoder predicts each masked token of held-out text.

Each token is masked alone, once, and the loss is the mean of the negative log-likelihoods of the
original tokens (Salazar et al. 2020, "Masked Language Model Scoring", arXiv:1910.14659, section 2).
This is not a probability of the text, so it compares only encoders. Each token of a row costs one
forward pass of the row: limit the cost with `tokens_per_source`.

Shapes: B rows of a forward pass, T positions, V entries of the vocabulary.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.evaluate.run_file import Evaluation
from trainrig.evaluate.scores.card import SourceScore
from trainrig.models.decoder import Decoder
from trainrig.objectives.cross_entropy import token_nats
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder


def score_masked_source(
    run: Evaluation, model: Decoder, encoder: Encoder, source: str
) -> SourceScore:
    """Compute the score of one source of the held-out split.

    Raises DataError if the tokenizer has no mask token.
    """
    shards = TokenShards.open(storage.join(str(run.tokens), HELD_OUT))
    last = shards.tokens(source)
    length = run.sequence_length
    assert length is not None  # the run file's validator requires it
    if run.tokens_per_source is not None:
        last = min(last, run.tokens_per_source)
    windows = (
        shards.read_window(source, start, min(length, last - start)).astype(np.int64)
        for start in range(0, last, length)
    )
    mask = encoder.special_tokens.of("mask").id
    special = list(encoder.special_ids.values())
    return score_masked_windows(
        model, windows, mask, special, encoder.byte_lengths, run.micro_batch
    )


def score_masked_windows(
    model: Decoder,
    windows: Iterator[Integers],
    mask: int,
    special: list[int],
    byte_lengths: NDArray[np.int64],
    micro_batch: int,
) -> SourceScore:
    """Compute the score over all `windows` [T] of token ids.

    Special tokens are part of the context, but are not predicted.
    """
    nats = 0.0
    tokens = text_bytes = right = 0
    device = model.embedding.weight.device
    with torch.inference_mode():
        for ids_T in windows:
            asked = np.flatnonzero(~np.isin(ids_T, special))
            for begin in range(0, len(asked), micro_batch):
                places_B = asked[begin : begin + micro_batch]
                rows_B = np.arange(len(places_B))
                ids_BT = np.repeat(ids_T[None], len(places_B), axis=0)
                ids_BT[rows_B, places_B] = mask
                flat = torch.from_numpy(rows_B * len(ids_T) + places_B).to(device)
                logits_BV = model(torch.from_numpy(ids_BT).to(device), places_N=flat).logits.float()
                there_B = torch.from_numpy(ids_T[places_B]).to(device)
                nats += float(token_nats(logits_BV, there_B).double().sum())
                right += int((logits_BV.argmax(-1) == there_B).sum())
                tokens += len(places_B)
                text_bytes += int(byte_lengths[ids_T[places_B]].sum())
    if not tokens:
        raise DataError("held-out text: it contains no token of text; hold out more")
    loss = nats / tokens
    return SourceScore(
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=nats / math.log(2) / text_bytes,
        tokens=tokens,
        bytes=text_bytes,
        accuracy=right / tokens,
    )
