"""GLM 4 and ERNIE 4.5 (dense): neighbouring channels are rotated together.

Sources: GLM 4 arXiv:2406.12793; ERNIE 4.5
https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf.

GLM rotates half of each head; GLM-4-0414 (`glm4`) also has a norm after each part.
"""

from trainrig.models.architecture.layer_settings import PreNorm, SandwichNorm
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import TensorName
from trainrig.models.families.phi3 import JOINED_GATE
from trainrig.models.families.row_orders import order_key_pairs, order_query_pairs

PAIRED_ATTENTION = (
    *(
        TensorName(
            (f"layers.{{layer}}.attention.{ours}.{part}",),
            f"model.layers.{{layer}}.self_attn.{theirs}.{part}",
            arrange=arrange,
        )
        for ours, theirs, arrange in (
            ("query", "q_proj", order_query_pairs),
            ("key", "k_proj", order_key_pairs),
        )
        for part in ("weight", "bias")
    ),
    *llama.list_projections(
        "self_attn", {"attention.value": "v_proj", "attention.output": "o_proj"}
    ),
)
GLM_KEYS = (
    keys.convert_sizes(positions=131_072, epsilon=1.5625e-7, kv_heads=2, head_channels=128),
    keys.SILU,
    keys.convert_rope(rotated_share=0.5),
    keys.convert_bias("attention_bias", "qkv", default=True),
)
GLM = keys.declare_family(
    "glm",
    "GlmForCausalLM",
    (*llama.EMBEDDINGS, *llama.NORMS, *PAIRED_ATTENTION, *JOINED_GATE, *llama.HEAD),
    (*GLM_KEYS, keys.assume(block=PreNorm())),
)
GLM4_NORMS = llama.list_norms(
    {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_self_attn_layernorm",
        "feedforward_norm": "post_attention_layernorm",
        "feedforward_output_norm": "post_mlp_layernorm",
    }
)
GLM4 = keys.declare_family(
    "glm4",
    "Glm4ForCausalLM",
    (*llama.EMBEDDINGS, *GLM4_NORMS, *PAIRED_ATTENTION, *JOINED_GATE, *llama.HEAD),
    (*GLM_KEYS, keys.assume(block=SandwichNorm())),
)
ERNIE4_5 = keys.declare_family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    (*llama.EMBEDDINGS, *llama.NORMS, *PAIRED_ATTENTION, *llama.GATED, *llama.HEAD),
    (
        keys.convert_sizes(
            positions=131_072, epsilon=1e-5, kv_heads=2, head_channels=128, tied=True
        ),
        keys.SILU,
        keys.convert_rope(theta=500_000.0),
        keys.convert_bias("use_bias", "qkv", "output", "feedforward"),
    ),
    heads={},  # Transformers has no classifier of this family.
)
