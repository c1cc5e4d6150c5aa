"""Phi 3 and 4: Llama with joined matrices, of which a part of each head may be rotated.

Sources: Phi 3 arXiv:2404.14219; Phi 4 arXiv:2412.08905.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig, TensorName
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


def _read_rope(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get_table(key)
        if table.get("rope_type", table.get("type", "default")) != "default":
            raise DataError(
                f"{config.path}: {key} asks for LongRoPE, whose factors depend on the length of "
                "the text, which trainrig does not support; only Phi models without scaling, such "
                "as Phi-3-mini-4k and Phi-4, can be imported"
            )
    return {"position_embedding": read_rope(config)}


def _write_rope(config: DecoderConfig) -> dict[str, Any] | None:
    rope = keys.find_rope(config)
    if rope.scaling is not None:
        return None  # Transformers would take any scaling of this family for LongRoPE
    share = {} if rope.rotated_share == 1 else {"partial_rotary_factor": rope.rotated_share}
    return {**write_rope(rope), **share}


PHI3 = keys.declare_family(
    "phi3",
    "Phi3ForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=4096, epsilon=1e-5),
        keys.SILU,
        keys.Keys(_read_rope, _write_rope),
        keys.convert_window(),
        keys.Keys(
            lambda config, before: {},
            lambda config: {"original_max_position_embeddings": config.positions},
        ),
        keys.write_only(resid_pdrop=0.0, embd_pdrop=0.0),
    ),
    adopted=True,
)
