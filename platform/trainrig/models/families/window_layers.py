"""Layers with a sliding window, which a config.json lists one by one in `layer_types`."""

from collections.abc import Sequence

from trainrig.models.architecture.attention_settings import SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope

LOCAL = "sliding_attention"
GLOBAL = "full_attention"


def build_window(
    kinds: Sequence[str], size: int | None, positions: int, rope: Rope | None = None
) -> SlidingWindow | None:
    """Return the window of the layers whose kind is LOCAL, or None if none has a window.

    `size` is the width in the config.json; a window has at most as many tokens as the model has
    `positions`. `rope`: rotary positions of layers with a window; None: those of all layers.
    """
    if size is None or LOCAL not in kinds:
        return None
    return SlidingWindow(
        size=min(size, positions),
        pattern=tuple("local" if kind == LOCAL else "global" for kind in kinds),
        rope=rope,
    )


def list_layer_types(config: DecoderConfig) -> list[str]:
    """Return the value of `layer_types` for a model of `config`."""
    window = config.attention.window
    return [
        LOCAL if window is not None and window.is_local(layer) else GLOBAL
        for layer in range(config.layers)
    ]
