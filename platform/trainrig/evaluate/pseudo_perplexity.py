"""How well an encoder says what stands at each place of held-out text, from all around it.

Salazar et al. 2020, "Masked Language Model Scoring", arXiv:1910.14659, section 2: each token is
masked by itself, once, and the loss is the mean of the nats of what was there. It is no probability
of the text, so it compares encoders with encoders alone. One forward pass of a row for each of its
tokens: bound what is read by `tokens_per_source`.

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
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards


def score_masked_source(
    run: Evaluation, model: Decoder, encoder: Encoder, source: str
) -> SourceScore:
    """The score of one source of the held-out split. Raises DataError without a mask token."""
    shards = TokenShards.open(storage.join(str(run.tokens), HELD_OUT))
    last, length = shards.tokens(source), run.sequence_length
    assert length is not None  # the run file was refused otherwise
    if run.tokens_per_source is not None:
        last = min(last, run.tokens_per_source)
    windows = (
        shards.read_window(source, start, min(length, last - start)).astype(np.int64)
        for start in range(0, last, length)
    )
    mask, special = encoder.special_tokens.of("mask").id, list(encoder.special_ids.values())
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
    """The score over all `windows` [T] of ids; special tokens are seen and not asked for."""
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
        raise DataError("held-out text: not one token of text in it; hold out more")
    loss = nats / tokens
    return SourceScore(
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=nats / math.log(2) / text_bytes,
        tokens=tokens,
        bytes=text_bytes,
        accuracy=right / tokens,
    )
