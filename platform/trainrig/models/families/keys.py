"""Keys of a config.json that families like Llama share, each converted in both directions.

Such a family is declared by the list of its keys, with what Transformers assumes for missing ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainrig.config import Settings
from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import (
    GELU,
    LayerNorm,
    MixtureOfExperts,
    RMSNorm,
    Rope,
    SwiGLU,
)
from trainrig.models.families.mapping import Family, HubConfig, TensorName
from trainrig.models.families.rope_tables import read_rope, write_partial_rope, write_rope

# Kinds of layers with and without a sliding window, in `layer_types`.
LOCAL = "sliding_attention"
GLOBAL = "full_attention"


@dataclass(frozen=True)
class Keys:
    """Some keys of a config.json, as settings of a `DecoderConfig` and back."""

    # Is given the settings of the keys before these, which its own add to or replace.
    read: Callable[[HubConfig, dict[str, Any]], dict[str, Any]]
    # Returns None for a model that these keys cannot express.
    write: Callable[[DecoderConfig], dict[str, Any] | None]


def declare_family(
    model_type: str,
    architecture: str,
    tensors: tuple[TensorName, ...],
    keys: Sequence[Keys],
    network: type[Settings] = SwiGLU,
    experts: bool = False,
    **options: Any,
) -> Family:
    """Return a family with rotary positions whose config.json has these `keys`, in this order.

    Its feed-forward networks are of the kind `network`, one or many (`experts`) in a layer.
    `options` are further fields of `Family`.
    """

    def read(config: HubConfig) -> DecoderConfig:
        settings: dict[str, Any] = {}
        for part in keys:
            settings |= part.read(config, settings)
        return config.build(**settings)

    def write(config: DecoderConfig) -> dict[str, Any] | None:
        own = config.feedforward
        if isinstance(own, MixtureOfExperts) != experts:
            return None
        kind = own.network if isinstance(own, MixtureOfExperts) else own
        if not isinstance(kind, network) or not isinstance(config.position_embedding, Rope):
            return None
        written: dict[str, Any] = {}
        for part in keys:
            found = part.write(config)
            if found is None:
                return None
            written |= found
        return written

    return Family(model_type, architecture, tensors, read, write, **options)


def find_rope(config: DecoderConfig) -> Rope:
    """Return the rotary positions of a model that a declared family writes."""
    assert isinstance(config.position_embedding, Rope), "declare_family has checked it"
    return config.position_embedding


def find_experts(config: DecoderConfig) -> MixtureOfExperts:
    """Return the experts of a model that a declared family with experts writes."""
    assert isinstance(config.feedforward, MixtureOfExperts), "declare_family has checked it"
    return config.feedforward


def assume(**settings: Any) -> Keys:
    """Return settings that all models of a family have, without a key."""
    return Keys(lambda config, before: settings, lambda config: {})


def write_only(**values: Any) -> Keys:
    """Return keys that are written, for other readers, and not read."""
    return Keys(lambda config, before: {}, lambda config: values)


def fix_key(key: str, *wanted: Any, written: bool = True) -> Keys:
    """Return a `key` that must have one of the `wanted` values; the first is its default."""

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        config.check_only(key, *wanted)
        return {}

    return Keys(read, lambda config: {key: wanted[0]} if written else {})


# Whether each is the tanh approximation.
GELUS = {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu": False}
SILU = fix_key("hidden_act", "silu")


def convert_gelu(usual: Literal["gelu_new", "gelu_pytorch_tanh"]) -> Keys:
    """Return the key of a GELU network; `usual`, a tanh approximation, is its default."""

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        config.check_only("hidden_act", *sorted(GELUS, key=lambda name: name != usual))
        return {"feedforward": GELU(tanh=GELUS[config.get("hidden_act", usual)])}

    def write(config: DecoderConfig) -> dict[str, Any]:
        assert isinstance(config.feedforward, GELU), "declare_family has checked it"
        return {"hidden_act": usual if config.feedforward.tanh else "gelu"}

    return Keys(read, write)


def convert_key(ours: str, theirs: str, default: Any) -> Keys:
    """Return a key whose value is a setting as it is."""
    return Keys(
        lambda config, before: {ours: config.get(theirs, default)},
        lambda config: {theirs: getattr(config, ours)},
    )


def convert_sizes(
    positions: int,
    epsilon: float,
    kv_heads: int | None = None,
    head_channels: int | None = None,
    tied: bool = False,
) -> Keys:
    """Return the keys of sizes and RMS norms, with what Transformers assumes for missing ones.

    None: as many key heads as heads, and heads that divide the channels. Families with layer norms
    have the key of RMS norms as well.
    """

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        return {
            "layers": config.need("num_hidden_layers"),
            "channels": config.need("hidden_size"),
            "heads": config.need("num_attention_heads"),
            "kv_heads": config.take("num_key_value_heads", kv_heads),
            "head_channels": config.take("head_dim", head_channels),
            "feedforward_channels": config.need("intermediate_size"),
            "vocabulary": config.need("vocab_size"),
            "positions": config.get("max_position_embeddings", positions),
            "norm": RMSNorm(epsilon=config.get("rms_norm_eps", epsilon)),
            "tie_embeddings": config.get("tie_word_embeddings", tied),
        }

    def write(config: DecoderConfig) -> dict[str, Any]:
        shape = config.shape
        return {
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.channels,
            "intermediate_size": shape.feedforward_channels,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_channels,
            "max_position_embeddings": config.positions,
            "rms_norm_eps": config.norm.epsilon,
            "attention_dropout": 0.0,
            "initializer_range": config.initial_std,
            "tie_word_embeddings": config.tie_embeddings,
            "use_cache": True,
        }

    return Keys(read, write)


def convert_layer_norm(key: str) -> Keys:
    """Return the `key` of layer norms, whose default is 1e-5."""
    return Keys(
        lambda config, before: {"norm": LayerNorm(epsilon=config.get(key, 1e-5))},
        lambda config: {key: config.norm.epsilon},
    )


def fill_head_channels(default: int) -> Keys:
    """Return `head_dim` of a family whose heads are of a `default` width if it is missing or null.

    `convert_sizes` writes it.
    """
    return Keys(
        lambda config, before: {"head_channels": config.get("head_dim", default)},
        lambda config: {},
    )


def convert_rope(theta: float = 10_000.0, rotated_share: float | None = None) -> Keys:
    """Return the keys of rotary positions.

    `theta` and `rotated_share` are Transformers' defaults; None: whole heads are rotated.
    """
    partial = {} if rotated_share is None else {"partial_rotary_factor": rotated_share}
    write_keys = write_rope if rotated_share is None else write_partial_rope
    return Keys(
        lambda config, before: {
            "position_embedding": read_rope(config.with_defaults(**partial), theta=theta)
        },
        lambda config: write_keys(find_rope(config)),
    )


def convert_bias(
    key: str, *parts: Literal["qkv", "output", "feedforward"], default: bool = False
) -> Keys:
    """Return the `key` of biases in these `parts`."""

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        biased = config.get(key, default)
        own = before.get("biases", Biases()).model_dump(exclude_unset=True)
        return {"biases": Biases(**own | dict.fromkeys(parts, biased))}

    return Keys(read, lambda config: {key: getattr(config.biases, parts[0])})


def convert_window(default: int | None = None) -> Keys:
    """Return the key of a window that all layers have, or none if it covers every position.

    `default` is the window that Transformers assumes for the family if the key is missing.
    """

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        size = config.take_positive("sliding_window", default)
        if size is None or size >= before["positions"]:
            return {"attention": AttentionSettings()}
        return {"attention": AttentionSettings(window=SlidingWindow(size=size))}

    def write(config: DecoderConfig) -> dict[str, Any] | None:
        window = config.attention.window
        if window is None:
            return {"sliding_window": None}
        return None if "global" in window.pattern else {"sliding_window": window.size}

    return Keys(read, write)


def repeat_kinds(layers: int, every: int) -> tuple[str, ...]:
    """Return the kinds of `layers` of which one in `every` has no window."""
    return tuple(GLOBAL if (layer + 1) % every == 0 else LOCAL for layer in range(layers))


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


def convert_layer_windows(
    size: int, list_kinds: Callable[[int, int | None], Sequence[str]], **attention: Any
) -> Keys:
    """Return the keys of a window, and of the layers that have it.

    `size` is its default. `list_kinds` returns the default kinds of the layers, given their number
    and the size. `attention` are further settings of attention.
    """

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        layers = before["layers"]
        found = config.take_positive("sliding_window", size)
        kinds = config.layer_types(layers) or list_kinds(layers, found)
        window = build_window(kinds, found, before["positions"])
        return {"attention": AttentionSettings(window=window, **attention)}

    def write(config: DecoderConfig) -> dict[str, Any]:
        window = config.attention.window
        return {
            "sliding_window": None if window is None else window.size,
            "layer_types": list_layer_types(config),
        }

    return Keys(read, write)


def convert_experts(
    key: str,
    experts: int,
    active: int,
    balance_loss: float,
    normalise: bool | None = None,
) -> Keys:
    """Return the keys of experts, whose number is in `key`, with Transformers' defaults.

    `normalise` is the default of `norm_topk_prob`; None: there is no such key.
    """

    def read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        own = {} if normalise is None else {"normalise": config.get("norm_topk_prob", normalise)}
        count = config.get(key, config.get("num_local_experts", experts))
        return {
            "feedforward": config.make(
                MixtureOfExperts,
                experts=count,
                active=config.get("num_experts_per_tok", active),
                balance_loss=config.get("router_aux_loss_coef", balance_loss),
                router_z_loss=0.0,
                **own,
            )
        }

    def write(config: DecoderConfig) -> dict[str, Any]:
        own = find_experts(config)
        return {
            "intermediate_size": own.expert_channels or config.shape.feedforward_channels,
            key: own.experts,
            "num_experts_per_tok": own.active,
            **({} if normalise is None else {"norm_topk_prob": own.normalise}),
            "router_aux_loss_coef": own.balance_loss,
        }

    return Keys(read, write)
