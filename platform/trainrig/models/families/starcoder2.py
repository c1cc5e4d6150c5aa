"""StarCoder 2: layer norms, GELU, biases everywhere, rotary positions (arXiv:2402.19173)."""

from trainrig.models.architecture.layer_settings import GELU
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import map_one

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
STARCODER2 = keys.declare_family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    TENSORS,
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
