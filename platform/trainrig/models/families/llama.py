"""Llama 1 to 3.3 and models like it (SmolLM, Vicuna, Yi), Mistral, Ministral, Mixtral, Seed-OSS.

Sources: Llama arXiv:2302.13971 and arXiv:2407.21783; Mistral arXiv:2310.06825; Mixtral
arXiv:2401.04088; Seed-OSS https://github.com/ByteDance-Seed/seed-oss.

The first release of Mistral has a sliding window; Ministral 8B has one in some layers, named one by
one. Mixtral is Mistral with two of eight experts as the feed-forward network.
"""

from trainrig.models.families import keys
from trainrig.models.families.mapping import TensorName, map_modules, map_one

EMBEDDINGS = (map_one("embedding.weight", "model.embed_tokens.weight"),)
HEAD = (
    map_one("norm.weight", "model.norm.weight"),
    map_one("head.weight", "lm_head.weight"),
)


def list_projections(theirs: str, names: dict[str, str]) -> tuple[TensorName, ...]:
    """Return the weight and bias of each linear layer below the module `theirs`.

    `names` maps trainrig's names to those of Transformers.
    """
    below = f"model.layers.{{layer}}.{theirs}"
    return map_modules({f"layers.{{layer}}.{ours}": f"{below}.{n}" for ours, n in names.items()})


def list_norms(names: dict[str, str]) -> tuple[TensorName, ...]:
    """Return the weight of each norm of a layer; `names` maps trainrig's to Transformers'."""
    found = {f"layers.{{layer}}.{ours}": f"model.layers.{{layer}}.{n}" for ours, n in names.items()}
    return map_modules(found, ("weight",))


NORMS = list_norms(
    {"attention_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}
)
ATTENTION = list_projections(
    "self_attn",
    {
        "attention.query": "q_proj",
        "attention.key": "k_proj",
        "attention.value": "v_proj",
        "attention.output": "o_proj",
    },
)
GATED = list_projections(
    "mlp",
    {"feedforward.gate": "gate_proj", "feedforward.up": "up_proj", "feedforward.down": "down_proj"},
)
TENSORS = (*EMBEDDINGS, *NORMS, *ATTENTION, *GATED, *HEAD)


LLAMA = keys.declare_family(
    "llama",
    "LlamaForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=2048, epsilon=1e-6),
        keys.SILU,
        keys.convert_rope(),
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.convert_bias("mlp_bias", "feedforward"),
    ),
)
SEED_OSS = keys.declare_family(
    "seed_oss",
    "SeedOssForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=524_288, epsilon=1e-6, kv_heads=8, head_channels=128),
        keys.SILU,
        keys.convert_rope(),
        keys.convert_bias("attention_bias", "qkv", default=True),
        keys.convert_bias("attention_out_bias", "output"),
        keys.convert_bias("mlp_bias", "feedforward"),
        keys.write_only(residual_dropout=0.0),
    ),
)
MISTRAL_KEYS = (
    keys.convert_sizes(positions=4096 * 32, epsilon=1e-6, kv_heads=8),
    keys.SILU,
    keys.convert_rope(),
)
MISTRAL = keys.declare_family(
    "mistral", "MistralForCausalLM", TENSORS, (*MISTRAL_KEYS, keys.convert_window(default=4096))
)


def _list_ministral_kinds(layers: int, window: int | None) -> tuple[str, ...]:
    return (keys.GLOBAL if window is None else keys.LOCAL,) * layers


MINISTRAL = keys.declare_family(
    "ministral",
    "MinistralForCausalLM",
    TENSORS,
    (*MISTRAL_KEYS, keys.convert_layer_windows(4096, _list_ministral_kinds)),
)


BELOW = "model.layers.{layer}.block_sparse_moe"
EXPERTS = (
    map_one("layers.{layer}.feedforward.router.weight", f"{BELOW}.gate.weight"),
    *(
        map_one(
            f"layers.{{layer}}.feedforward.experts.{ours}", f"{BELOW}.experts.{{expert}}.{theirs}"
        )
        for ours, theirs in {
            "gate": "w1.weight",
            "up": "w3.weight",
            "down": "w2.weight",
        }.items()
    ),
)
MIXTRAL = keys.declare_family(
    "mixtral",
    "MixtralForCausalLM",
    (*EMBEDDINGS, *NORMS, *ATTENTION, *EXPERTS, *HEAD),
    (
        keys.convert_sizes(positions=4096 * 32, epsilon=1e-5, kv_heads=8),
        keys.SILU,
        keys.convert_rope(theta=1_000_000.0),
        keys.convert_window(),
        keys.convert_experts("num_local_experts", experts=8, active=2, balance_loss=0.001),
    ),
    experts=True,
)
