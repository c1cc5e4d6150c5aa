"""Phi 3 and 4: Llama with joined matrices, of which a part of each head may be rotated.

Sources: Phi 3 arXiv:2404.14219; Phi 4 arXiv:2412.08905.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig, TensorName
from trainrig.models.families.rope_tables import read_rope, write_rope

JOINED_GATE = (
    TensorName(
        ("layers.{layer}.feedforward.gate.weight", "layers.{layer}.feedforward.up.weight"),
        "model.layers.{layer}.mlp.gate_up_proj.weight",
    ),
    *llama.list_projections("mlp", {"feedforward.down": "down_proj"}),
)
TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    TensorName(
        tuple(f"layers.{{layer}}.attention.{name}.weight" for name in ("query", "key", "value")),
        "model.layers.{layer}.self_attn.qkv_proj.weight",
    ),
    *llama.list_projections("self_attn", {"attention.output": "o_proj"}),
    *JOINED_GATE,
    *llama.HEAD,
)


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get_table(key)
        if table.get("rope_type", table.get("type", "default")) != "default":
            raise DataError(
                f"{config.path}: {key} asks for LongRoPE, whose factors depend on the length of "
                "the text, which trainrig does not support; only Phi models without scaling, such "
                "as Phi-3-mini-4k and Phi-4, can be imported"
            )
    sizes = llama.read_sizes(config, positions=4096, epsilon=1e-5)
    return config.build(
        **sizes, position_embedding=read_rope(config), attention=llama.read_window(config, sizes)
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    window = llama.write_window(config)
    rope = config.position_embedding
    if window is None or not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    if rope.scaling is not None:
        return None  # Transformers would take any scaling of this family for LongRoPE
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(rope),
        **({} if rope.rotated_share == 1 else {"partial_rotary_factor": rope.rotated_share}),
        **window,
        "original_max_position_embeddings": config.positions,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
    }


PHI3 = Family("phi3", "Phi3ForCausalLM", TENSORS, _read, _write, adopted=True)
