"""StarCoder 2, StableLM and Phi: layer norms with biases, and rotary positions.

StarCoder 2 has GELU and biases everywhere (arXiv:2402.19173). StableLM is Llama with a part of each
head rotated (arXiv:2402.17834). Phi 1, 1.5 and 2 have both parts of a layer in parallel after one
norm (arXiv:2309.05463).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GELU, ParallelBlock, PreNorm
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig, map_modules, map_one

NORM_BIASES = (
    map_one("layers.{layer}.attention_norm.bias", "model.layers.{layer}.input_layernorm.bias"),
    map_one(
        "layers.{layer}.feedforward_norm.bias", "model.layers.{layer}.post_attention_layernorm.bias"
    ),
)
LAST_NORM_BIAS = map_one("norm.bias", "model.norm.bias")
STARCODER2 = keys.declare_family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    (
        *llama.EMBEDDINGS,
        *llama.NORMS,
        *NORM_BIASES,
        *llama.ATTENTION,
        *llama.list_projections("mlp", {"feedforward.up": "c_fc", "feedforward.down": "c_proj"}),
        LAST_NORM_BIAS,
        *llama.HEAD,
    ),
    (
        keys.convert_sizes(positions=4096, epsilon=1e-5, kv_heads=2, tied=True),
        keys.convert_layer_norm("norm_epsilon"),
        keys.convert_gelu("gelu_pytorch_tanh"),
        keys.convert_rope(),
        keys.convert_window(),
        keys.convert_bias("use_bias", "qkv", "output", "feedforward", default=True),
        keys.write_only(residual_dropout=0.0, embedding_dropout=0.0),
    ),
    network=GELU,
)


def _read_block(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    parallel = config.get("use_parallel_residual", False)
    return {"block": ParallelBlock() if parallel else PreNorm()}


def _write_block(config: DecoderConfig) -> dict[str, Any]:
    return {"use_parallel_residual": isinstance(config.block, ParallelBlock)}


STABLELM = keys.declare_family(
    "stablelm",
    "StableLmForCausalLM",
    (
        *llama.EMBEDDINGS,
        *llama.NORMS,
        *NORM_BIASES,
        *llama.ATTENTION,
        *llama.GATED,
        LAST_NORM_BIAS,
        *llama.HEAD,
    ),
    (
        keys.convert_sizes(positions=4096, epsilon=1e-5, kv_heads=32),
        keys.convert_layer_norm("layer_norm_eps"),
        keys.SILU,
        keys.convert_rope(rotated_share=0.25),
        keys.convert_bias("use_qkv_bias", "qkv"),
        keys.fix_key("qk_layernorm", False),  # That norm would have separate gains for every head.
        keys.Keys(_read_block, _write_block),
        keys.write_only(hidden_dropout=0.0),
        keys.assume(head_channels=None),  # Transformers reads no `head_dim` here
    ),
)
PHI = keys.declare_family(
    "phi",
    "PhiForCausalLM",
    (
        *llama.EMBEDDINGS,
        llama.NORMS[0],
        NORM_BIASES[0],
        *llama.list_projections(
            "self_attn",
            {
                "attention.query": "q_proj",
                "attention.key": "k_proj",
                "attention.value": "v_proj",
                "attention.output": "dense",
            },
        ),
        *llama.list_projections("mlp", {"feedforward.up": "fc1", "feedforward.down": "fc2"}),
        *map_modules({"norm": "model.final_layernorm", "head": "lm_head"}),
    ),
    (
        keys.convert_sizes(positions=2048, epsilon=1e-5),
        keys.convert_layer_norm("layer_norm_eps"),
        keys.convert_gelu("gelu_new"),
        keys.convert_rope(rotated_share=0.5),
        keys.fix_key("qk_layernorm", False),
        keys.fix_key("tie_word_embeddings", False),
        keys.write_only(embd_pdrop=0.0, resid_pdrop=0.0),
        keys.assume(
            block=ParallelBlock(), biases=Biases(qkv=True, output=True, feedforward=True, head=True)
        ),
    ),
    network=GELU,
    heads={},  # Such a head has no bias, by which trainrig would not know the family again.
)
