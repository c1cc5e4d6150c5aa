"""A tiny model with non-uniform predictions, and a tokenizer of bytes and a few merges."""

import random

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.tokens.special_tokens import SPECIAL_TOKENS
from trainrig.tokens.tokenizers.encode import Encoder

CONFIG = DecoderConfig(
    layers=2, channels=32, heads=4, kv_heads=2, positions=96, vocabulary=320, initial_std=0.3
)


@pytest.fixture(scope="session")
def tiny_model() -> Decoder:
    torch.set_num_threads(1)
    model = Decoder(CONFIG)
    initialise(model, seed=5)
    return model.eval()


@pytest.fixture(scope="session")
def tiny_encoder() -> Encoder:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = ["the", "sea", "is", "grey", "Question", "Answer", "because", "and"]
    dice = random.Random(0)
    texts = [" ".join(dice.choices(words, k=30)) for _ in range(20)]
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Encoder(tokenizer.to_str())
