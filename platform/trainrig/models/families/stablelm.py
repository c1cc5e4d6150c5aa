"""StableLM: Llama with layer norms and a part of each head rotated (arXiv:2402.17834)."""

from typing import Any

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import ParallelBlock, PreNorm
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.starcoder2 import LAST_NORM_BIAS, NORM_BIASES

TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *NORM_BIASES,
    *llama.ATTENTION,
    *llama.GATED,
    *LAST_NORM_BIAS,
    *llama.HEAD,
)


def _read_block(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    parallel = config.get("use_parallel_residual", False)
    return {"block": ParallelBlock() if parallel else PreNorm()}


def _write_block(config: DecoderConfig) -> dict[str, Any]:
    return {"use_parallel_residual": isinstance(config.block, ParallelBlock)}


STABLELM = keys.declare_family(
    "stablelm",
    "StableLmForCausalLM",
    TENSORS,
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
