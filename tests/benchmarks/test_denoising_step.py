"""Steps of masked prediction and span corruption, compared with causal steps and Transformers'."""

import numpy as np
import pytest
import torch
from support import side_by_side
from support.one_batch import make_our_step

from trainrig.flops import count_position_flops
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.decoder import DecoderConfig
from trainrig.models.families import read_config
from trainrig.objectives.objective_interface import find_corruption
from trainrig.objectives.objective_kinds import CausalLM, MaskedLM, SpanCorruption
from trainrig.tokens.batches import (
    DECODER_IDS,
    IDS,
    TARGETS,
    MicroBatch,
    build_token_arrays,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

pytestmark = pytest.mark.bench
SEQUENCES = 8
LENGTH = 256
VOCABULARY = 4096
ROUNDS = 9
SIZES = {"layers": 4, "channels": 256, "heads": 4, "vocabulary": VOCABULARY, "positions": LENGTH}


@pytest.fixture(scope="module")
def rows():
    """Return a function that makes batches.

    `rows(objective, sequences)` returns a batch of random bytes prepared by that objective.
    """
    settings = ByteLevelBPE(vocabulary=364, sentinels=100, extra=("<|mask|>",))
    encoder = Encoder(settings.train([]).decode())

    def make(objective, sequences=SEQUENCES):
        ids = np.random.default_rng(0).integers(0, 256, (sequences, LENGTH + 1))
        numbers = np.arange(sequences)
        pieces = np.stack([numbers, numbers * 0, numbers], axis=1)
        arrays = build_token_arrays(ids[:, :-1].copy(), ids[:, 1:].copy())
        micro = MicroBatch(arrays, numbers, numbers * 0, pieces)
        corruption = find_corruption(objective, encoder, LENGTH)
        return corruption.apply(micro, 0) if corruption else micro

    return make


def theirs(model, micro):
    """Return a step of a plain loop around a Transformers model, with torch's fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    names = {"input_ids": IDS, "labels": TARGETS, "decoder_input_ids": DECODER_IDS}
    given = {
        theirs: torch.from_numpy(micro.arrays[name])
        for theirs, name in names.items()
        if name in micro.arrays
    }

    def step():
        model(**given).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def count_tokens(micro):
    """Count the tokens that a model reads in a batch, encoder and decoder together."""
    return sum(micro.arrays[name].size for name in (IDS, DECODER_IDS) if name in micro.arrays)


@pytest.mark.parametrize(
    ("kind", "sequences"), [("MaskedLM", 8), ("SpanCorruption", 8), ("SpanCorruption", 24)]
)
def test_a_token_costs_about_as_much_as_in_next_token_prediction(alone, rows, kind, sequences):
    """Compare models with equal layers and widths.

    The decoder after an encoder also attends to the encoder's output. More sequences spread the
    cost of a step that depends on the parameters alone, and two stacks have twice as many
    parameters.
    """
    chosen = {
        "MaskedLM": (EncoderConfig(**SIZES), MaskedLM()),
        "SpanCorruption": (EncoderDecoderConfig(**SIZES, encoder_layers=4), SpanCorruption()),
    }
    model, objective = chosen[kind]
    decoder = DecoderConfig(**SIZES)
    causal = CausalLM()
    micro = rows(objective, sequences)
    plain = rows(causal, sequences)
    share = count_tokens(plain) / count_tokens(micro)
    operations = count_position_flops(objective, model, LENGTH) / count_position_flops(
        causal, decoder, LENGTH
    )
    ratio = side_by_side.compare(
        f"training step of {kind}, of {count_tokens(micro):,} tokens, against one of CausalLM, of "
        f"{count_tokens(plain):,}",
        make_our_step(model, objective=objective, micro=micro),
        make_our_step(decoder, objective=causal, micro=plain),
        rounds=ROUNDS,
    )
    print(
        f"{kind}: {ratio * share:.3f} of the CPU seconds of CausalLM a token, for "
        f"{operations * share:.3f} of its operations"
    )
    assert ratio * share < {"MaskedLM": 1.1, "SpanCorruption": 1.25}[kind]


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_step_is_no_slower_than_transformers(alone, rows, kind):
    import transformers

    common = {"vocab_size": VOCABULARY, "attn_implementation": "sdpa"}
    if kind == "bert":
        objective = MaskedLM()
        config = transformers.BertConfig(
            **common, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
            intermediate_size=1024, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, architectures=["BertForMaskedLM"],
        )  # fmt: skip
        peer = transformers.BertForMaskedLM(config)
    else:
        objective = SpanCorruption()
        config = transformers.T5Config(  # type: ignore[call-arg]
            vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=640, num_layers=4, num_heads=4,
            dropout_rate=0.0, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
            architectures=["T5ForConditionalGeneration"],
        )  # fmt: skip
        peer = transformers.T5ForConditionalGeneration(config)
    _, model = read_config(config.to_dict(), "config.json")
    micro = rows(objective)
    ratio = side_by_side.compare(
        f"training step of {kind}, of {count_tokens(micro):,} tokens, against Transformers'",
        make_our_step(model, objective=objective, micro=micro),
        theirs(peer.train(), micro),
        rounds=ROUNDS,
    )
    assert ratio < 1.1
