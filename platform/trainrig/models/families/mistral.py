"""Mistral: Llama's architecture, in the first release with a sliding window (arXiv:2310.06825)."""

from typing import Any

from trainrig.models.architecture.attention import AttentionSettings, SlidingWindow
from trainrig.models.architecture.feedforward import SwiGLU
from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.llama import TENSORS, read_sizes, write_sizes
from trainrig.models.families.mapping import Family, HubConfig, read_rope, write_rope


def read_window(config: HubConfig, sizes: dict[str, Any]) -> AttentionSettings:
    """Return attention with the window of all layers, or none if it covers every position."""
    window = config.get("sliding_window")
    if window is None or window >= sizes["positions"]:
        return AttentionSettings()
    return AttentionSettings(window=SlidingWindow(size=window))


def write_window(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json key of the window; its value is None if no layer has a window.

    Returns None instead if only some layers have one: then the model is no Mistral.
    """
    window = config.attention.window
    if window is None:
        return {"sliding_window": None}
    return None if "global" in window.pattern else {"sliding_window": window.size}


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = read_sizes(config, positions=4096 * 32, epsilon=1e-6)
    return config.build(
        **sizes, position_embedding=read_rope(config), attention=read_window(config, sizes)
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    window = write_window(config)
    if (
        window is None
        or not isinstance(config.position_embedding, Rope)
        or not isinstance(config.feedforward, SwiGLU)
    ):
        return None
    rope = write_rope(config.position_embedding)
    return {**write_sizes(config), "hidden_act": "silu", **rope, **window}


MISTRAL = Family("mistral", "MistralForCausalLM", TENSORS, _read, _write)
