"""StarCoder 2: layer norms, GELU, biases everywhere, rotary positions (arXiv:2402.19173)."""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GELU, LayerNorm, Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig, map_one
from trainrig.models.families.rope_tables import read_rope, write_rope

NORM_BIASES = (
    map_one("layers.{layer}.attention_norm.bias", "model.layers.{layer}.input_layernorm.bias"),
    map_one(
        "layers.{layer}.feedforward_norm.bias", "model.layers.{layer}.post_attention_layernorm.bias"
    ),
)
LAST_NORM_BIAS = (map_one("norm.bias", "model.norm.bias"),)
TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *NORM_BIASES,
    *llama.ATTENTION,
    *llama.list_projections("mlp", {"feedforward.up": "c_fc", "feedforward.down": "c_proj"}),
    *LAST_NORM_BIAS,
    *llama.HEAD,
)
# Whether each is the tanh approximation.
ACTIVATIONS = {"gelu_pytorch_tanh": True, "gelu_new": True, "gelu": False}


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", *ACTIVATIONS)
    sizes = llama.read_sizes(config, positions=4096, epsilon=1e-5, kv_heads=2)
    biased = config.get("use_bias", True)
    tanh = ACTIVATIONS[config.get("hidden_act", "gelu_pytorch_tanh")]
    changed = {
        "norm": LayerNorm(epsilon=config.get("norm_epsilon", 1e-5)),
        "tie_embeddings": config.get("tie_word_embeddings", True),
    }
    return config.build(
        **sizes | changed,
        position_embedding=read_rope(config),
        attention=llama.read_window(config, sizes),
        feedforward=GELU(tanh=tanh),
        biases=Biases(qkv=biased, output=biased, feedforward=biased),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    window = llama.write_window(config)
    rope = config.position_embedding
    if window is None or not isinstance(config.feedforward, GELU) or not isinstance(rope, Rope):
        return None
    return {
        **llama.write_layer_norm_sizes(config, "norm_epsilon"),
        "hidden_act": "gelu_pytorch_tanh" if config.feedforward.tanh else "gelu",
        **write_rope(rope),
        **window,
        "use_bias": config.biases.qkv,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
    }


STARCODER2 = Family("starcoder2", "Starcoder2ForCausalLM", TENSORS, _read, _write)
