"""Adding special tokens to a trained model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import ALIGNMENT
from trainrig.models.families.safetensors_files import PlannedTensor
from trainrig.models.huggingface import HubModel
from trainrig.tokens.special_tokens import NEW_TOKENS, find_special_tokens, parse_tokenizer

# Tensors with one row for each vocabulary entry.
TABLES = ("embedding.weight", "head.weight", "head.bias", "head_bias")


def add_special_tokens(model: HubModel, tokens: Sequence[str]) -> HubModel:
    """Return `model` with special tokens added to its tokenizer and its tables.

    The tables keep their size if they have unused rows; otherwise they grow to the next multiple of
    64 rows. The row of a new token is the mean of the rows of all tokens before it: its logit then
    starts as an average one, and the probabilities of the other tokens change little (Hewitt 2021,
    "Initializing new word embeddings for pretrained language models"). Raises DataError if the
    tokenizer already has one of `tokens`.
    """
    if not tokens:
        return model
    tokenizer = parse_tokenizer(model.files.tokenizer, model.files.where)
    for token in tokens:
        if tokenizer.token_to_id(token) is not None:
            raise DataError(
                f"{model.files.where}: the tokenizer already has the token {token!r}; leave it out"
            )
    entries = find_special_tokens(model.files, tokenizer).entries
    tokenizer.add_special_tokens(list(tokens))
    rows = model.config.shape.vocabulary
    wanted = entries + len(tokens)
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
    """Return `table` with `rows` rows, those from `entries` on being the mean of those before."""

    def read() -> Tensor:
        old = table.read()
        new = torch.empty((rows, *old.shape[1:]), dtype=old.dtype)
        new[:entries] = old[:entries]
        new[entries:] = old[:entries].float().mean(dim=0).to(old.dtype)
        return new

    return PlannedTensor((rows, *table.shape[1:]), read)
