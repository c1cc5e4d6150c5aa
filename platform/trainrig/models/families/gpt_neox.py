"""GPT-NeoX and Pythia: both parts of a layer in parallel, layer norms, a part of each head rotated.

Sources: GPT-NeoX arXiv:2204.06745; Pythia arXiv:2304.01373.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import (
    GELU,
    LayerNorm,
    ParallelBlock,
    PreNorm,
    Rope,
)
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_modules, map_one
from trainrig.models.families.rope_tables import read_rope, write_partial_rope
from trainrig.models.families.row_orders import order_by_head

QKV = tuple(f"layers.{{layer}}.attention.{name}" for name in ("query", "key", "value"))
BELOW = "gpt_neox.layers.{layer}"
TENSORS = (
    map_one("embedding.weight", "gpt_neox.embed_in.weight"),
    *(
        TensorName(
            tuple(f"{name}.{part}" for name in QKV),
            f"{BELOW}.attention.query_key_value.{part}",
            arrange=order_by_head,
        )
        for part in ("weight", "bias")
    ),
    *map_modules(
        {
            "layers.{layer}.attention_norm": f"{BELOW}.input_layernorm",
            "layers.{layer}.attention.output": f"{BELOW}.attention.dense",
            "layers.{layer}.feedforward_norm": f"{BELOW}.post_attention_layernorm",
            "layers.{layer}.feedforward.up": f"{BELOW}.mlp.dense_h_to_4h",
            "layers.{layer}.feedforward.down": f"{BELOW}.mlp.dense_4h_to_h",
            "norm": "gpt_neox.final_layer_norm",
        }
    ),
    map_one("head.weight", "embed_out.weight"),
)
# Whether each is the tanh approximation.
ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True, "gelu_fast": True}


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", *ACTIVATIONS)
    table = config.get_table("rope_parameters")
    config = config.with_defaults(
        rope_theta=table.get("rope_theta", config.get("rotary_emb_base", 10_000.0)),
        partial_rotary_factor=config.get("rotary_pct", 0.25),
    )
    biased = config.get("attention_bias", True)
    parallel = config.get("use_parallel_residual", True)
    return config.build(
        layers=config.need("num_hidden_layers"),
        channels=config.need("hidden_size"),
        heads=config.need("num_attention_heads"),
        feedforward_channels=config.need("intermediate_size"),
        vocabulary=config.need("vocab_size"),
        positions=config.get("max_position_embeddings", 2048),
        position_embedding=read_rope(config),
        feedforward=GELU(tanh=ACTIVATIONS[config.get("hidden_act", "gelu")]),
        norm=LayerNorm(epsilon=config.get("layer_norm_eps", 1e-5)),
        block=ParallelBlock(shared_norm=False) if parallel else PreNorm(),
        biases=Biases(qkv=biased, output=biased, feedforward=True),
        tie_embeddings=config.get("tie_word_embeddings", False),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    shape = config.shape
    rope = config.position_embedding
    if not isinstance(config.feedforward, GELU) or not isinstance(rope, Rope):
        return None
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.channels,
        "intermediate_size": shape.feedforward_channels,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": config.positions,
        "hidden_act": "gelu_new" if config.feedforward.tanh else "gelu",
        "layer_norm_eps": config.norm.epsilon,
        "use_parallel_residual": isinstance(config.block, ParallelBlock),
        **write_partial_rope(rope),
        "rotary_pct": rope.rotated_share,
        "rotary_emb_base": rope.theta,
        "attention_bias": config.biases.qkv,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "initializer_range": config.initial_std,
        "tie_word_embeddings": config.tie_embeddings,
        "use_cache": True,
    }


GPT_NEOX = Family("gpt_neox", "GPTNeoXForCausalLM", TENSORS, _read, _write, prefix="gpt_neox.")
