"""Qwen 2 and 2.5: Llama with biases on queries, keys and values (arXiv:2407.10671).

The paper on Qwen 2.5 is arXiv:2412.15115.
"""

from typing import Any

from trainrig.models.architecture.attention import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.feedforward import SwiGLU
from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.llama import TENSORS, read_sizes, write_sizes
from trainrig.models.families.mapping import Family, HubConfig, read_rope, write_rope


def read_window_of_upper_layers(config: HubConfig, sizes: dict[str, Any]) -> SlidingWindow | None:
    """Return the sliding window, which the layers from number `max_window_layers` on have.

    Returns None if no layer has one: `use_sliding_window` is off, or the window covers every
    position.
    """
    size = config.get("sliding_window")
    if not config.get("use_sliding_window", False) or size is None or size >= sizes["positions"]:
        return None
    kinds = config.layer_types(sizes["layers"])
    first = config.get("max_window_layers", 28)
    if kinds is None:
        kinds = tuple(
            "sliding_attention" if layer >= first else "full_attention"
            for layer in range(sizes["layers"])
        )
    if "sliding_attention" not in kinds:
        return None
    return SlidingWindow(
        size=size,
        pattern=tuple("local" if kind == "sliding_attention" else "global" for kind in kinds),
    )


def write_layer_types(config: DecoderConfig) -> dict[str, Any]:
    """Return the config.json keys for the window, and for the layers that have it."""
    window = config.attention.window
    if window is None:
        return {"use_sliding_window": False, "sliding_window": None}
    local = [window.is_local(layer) for layer in range(config.layers)]
    return {
        "use_sliding_window": True,
        "sliding_window": window.size,
        "max_window_layers": local.index(True),
        "layer_types": [("full_attention", "sliding_attention")[is_local] for is_local in local],
    }


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = read_sizes(config, positions=32768, epsilon=1e-6)
    return config.build(
        **sizes,
        position_embedding=read_rope(config),
        attention=AttentionSettings(window=read_window_of_upper_layers(config, sizes)),
        biases=Biases(qkv=True),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys of `config`, or None if it is clearly not of this family.

    `Family.holds` finds the other differences, such as other biases, by reading the keys again.
    """
    if not isinstance(config.position_embedding, Rope) or not isinstance(
        config.feedforward, SwiGLU
    ):
        return None
    rope = write_rope(config.position_embedding)
    return {**write_sizes(config), "hidden_act": "silu", **rope, **write_layer_types(config)}


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", TENSORS, _read, _write)
