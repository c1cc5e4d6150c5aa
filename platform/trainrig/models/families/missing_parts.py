"""Parts that well-known models have and trainrig does not, for the message of a refusal."""

from collections.abc import Mapping
from typing import Any

MAMBA = "Mamba layers"
DELTA = "Gated DeltaNet layers"
# The missing part by `model_type`.
PARTS: Mapping[str, str] = {
    "bamba": MAMBA,
    "falcon_h1": MAMBA,
    "gemma4_text": "keys and values that layers share, and an embedding for each layer",
    "granitemoehybrid": MAMBA,
    "hunyuan_v1_dense": "norms of queries and keys after their rotation",
    "jamba": MAMBA,
    "kimi_linear": DELTA,
    "llama4_text": "attention in chunks",
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "ministral3": "queries whose scale grows with the position",
    "nemotron_h": MAMBA,
    "olmo": "layer norms without gains",
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA,
}


def explain_refusal(given: Mapping[str, Any], supported: str) -> str:
    """Return why a model with the config.json `given` cannot be imported, and what can.

    `supported` lists the families that can.
    """
    kind = given.get("model_type")
    if "text_config" in given:
        return (
            f"model_type {kind!r} reads more than text; save its language model alone with "
            f"Transformers, if it is one of these: {supported}"
        )
    part = PARTS.get(str(kind))
    if part is not None:
        return f"model_type {kind!r} needs {part}, which trainrig lacks; supported: {supported}"
    return (
        f"cannot import model_type {kind!r} with architectures {given.get('architectures')!r}; "
        f"supported: {supported}"
    )
