"""Phi 1, 1.5 and 2: both parts of a layer in parallel after one layer norm, biases everywhere.

Source: Li et al. 2023, arXiv:2309.05463.
"""

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.layer_settings import GELU, ParallelBlock
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import map_modules
from trainrig.models.families.starcoder2 import NORM_BIASES

TENSORS = (
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
)
PHI = keys.declare_family(
    "phi",
    "PhiForCausalLM",
    TENSORS,
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
