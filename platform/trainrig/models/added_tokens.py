"""Tokens added to a model that has learnt without them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.decoder_config import ALIGNMENT
from trainrig.models.families.safetensors_files import PlannedTensor
from trainrig.models.huggingface import HubModel
from trainrig.tokens.special_tokens import NEW_TOKENS, find_special_tokens, parse_tokenizer

TABLES = ("embedding.weight", "head.weight", "head.bias", "head_bias")  # a row for each entry


def add_special_tokens(model: HubModel, tokens: Sequence[str]) -> HubModel:
    """`model` with special tokens that it had not.

    Its tables keep their rows if there is room; else they grow to the next multiple of 64. The row
    of a new token is the mean of those of all tokens before it: then its logit begins as an average
    one, and no other token's changes much (Hewitt 2021, "Initializing new word embeddings for
    pretrained language models"). Raises DataError for a token that is there.
    """
    if not tokens:
        return model
    tokenizer = parse_tokenizer(model.files.tokenizer, model.files.where)
    for token in tokens:
        if tokenizer.token_to_id(token) is not None:
            raise DataError(f"{model.files.where}: has {token!r} already; leave it out")
    entries = find_special_tokens(model.files, tokenizer).entries
    tokenizer.add_special_tokens(list(tokens))
    rows, wanted = model.config.shape.vocabulary, entries + len(tokens)
    if rows < wanted:
        rows = -(-wanted // ALIGNMENT) * ALIGNMENT
    tensors: Mapping[str, PlannedTensor] = {
        name: _grow_table(tensor, entries, rows) if name in TABLES else tensor
        for name, tensor in model.tensors.items()
    }
    return replace(
        model,
        config=model.config.model_copy(update={"vocabulary": rows}),
        files=replace(
            model.files,
            tokenizer=tokenizer.to_str(),
            beside={**model.files.beside, NEW_TOKENS: json.dumps(list(tokens))},
        ),
        tensors=tensors,
    )


def _grow_table(table: PlannedTensor, entries: int, rows: int) -> PlannedTensor:
    """`table` with `rows` rows, those from `entries` on the mean of those before."""

    def read() -> Tensor:
        old = table.read()
        new = torch.empty((rows, *old.shape[1:]), dtype=old.dtype)
        new[:entries] = old[:entries]
        new[entries:] = old[:entries].float().mean(dim=0).to(old.dtype)
        return new

    return PlannedTensor((rows, *table.shape[1:]), read)
