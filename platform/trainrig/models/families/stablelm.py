"""StableLM: Llama with layer norms and a part of each head rotated (arXiv:2402.17834)."""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import LayerNorm, ParallelBlock, PreNorm, Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.rope_tables import read_rope, write_partial_rope
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


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    config.check_only("qk_layernorm", False)  # That norm would have separate gains for every head.
    sizes = llama.read_sizes(config, positions=4096, epsilon=1e-5, kv_heads=32)
    parallel = config.get("use_parallel_residual", False)
    changed = {
        "head_channels": None,  # Transformers reads no `head_dim` here
        "norm": LayerNorm(epsilon=config.get("layer_norm_eps", 1e-5)),
    }
    return config.build(
        **sizes | changed,
        position_embedding=read_rope(config.with_defaults(partial_rotary_factor=0.25)),
        block=ParallelBlock() if parallel else PreNorm(),
        biases=Biases(qkv=config.get("use_qkv_bias", False)),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    return {
        **llama.write_layer_norm_sizes(config, "layer_norm_eps"),
        "hidden_act": "silu",
        **write_partial_rope(rope),
        "use_qkv_bias": config.biases.qkv,
        "qk_layernorm": False,
        "use_parallel_residual": isinstance(config.block, ParallelBlock),
        "hidden_dropout": 0.0,
    }


STABLELM = Family("stablelm", "StableLmForCausalLM", TENSORS, _read, _write)
