"""Descriptions of Hugging Face model families: tensor names and settings, in both directions.

"Ours" are trainrig's names and settings, "theirs" those of Transformers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from trainrig.config import Settings
from trainrig.errors import ConfigError, DataError
from trainrig.models.architecture import layer_settings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.decoder_fields import Head

LAYER = "{layer}"  # placeholder in tensor names for the number of the layer, from 0
# Placeholder for the number of a decoder layer in an encoder-decoder; in our names the number
# continues after the encoder's layers.
WRITING_LAYER = "{writing_layer}"
EXPERT = "{expert}"  # placeholder in tensor names for the number of the expert, from 0
# Endings of architecture names by head; token heads have several.
ENDINGS: Mapping[Head, str] = {
    "score": "ForSequenceClassification",
    "classes": "ForSequenceClassification",
    "spans": "ForQuestionAnswering",
    "replaced": "ForPreTraining",
}
OF_TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")
Part = TypeVar("Part", bound=Settings)
# Buffers in old checkpoints (rotary rates, causal masks, position ids) that follow from settings.
DERIVED = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|position_ids)")


@dataclass(frozen=True)
class TensorName:
    """One or several tensors of ours, and the tensor of theirs that holds them.

    Several of ours are concatenated in theirs along `dim`. With `EXPERT` in `theirs`, each expert
    has a tensor of theirs, and ours is the stack of them.
    """

    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False  # theirs is stored as [..., inputs, outputs]
    dim: int = 0  # dimension of ours along which several are concatenated
    # Function that returns the order in theirs along `dim` (see row_orders.py); None: as ours.
    arrange: Callable[[DecoderConfig], tuple[int, ...]] | None = None
    order: tuple[int, ...] | None = None  # order that `arrange` returned for one model
    # Function that returns whether a model stores ours under this name; None: every model does.
    applies: Callable[[DecoderConfig], bool] | None = None
    in_float32: bool = False  # theirs is stored in float32, whatever the dtype of the others

    def resolve_order(self, config: DecoderConfig) -> Self:
        """Return this entry with the order of the outputs in a model of `config`."""
        return self if self.arrange is None else replace(self, order=self.arrange(config))


def map_one(ours: str, theirs: str, transposed: bool = False) -> TensorName:
    """Return the mapping of one tensor of ours to one of theirs."""
    return TensorName((ours,), theirs, transposed)


def map_modules(
    names: Mapping[str, str], parts: Sequence[str] = ("weight", "bias")
) -> tuple[TensorName, ...]:
    """Return the mapping of the `parts` of each module of ours to a module of theirs."""
    return tuple(
        map_one(f"{ours}.{part}", f"{theirs}.{part}")
        for ours, theirs in names.items()
        for part in parts
    )


@dataclass(frozen=True)
class Family:
    """Models that share an architecture of Transformers."""

    model_type: str
    architecture: str
    # Every tensor that a model of the family can have, with placeholders for layers and experts.
    tensors: tuple[TensorName, ...]
    # Conversion of their settings to ours, and of ours to theirs. `write` returns None for a
    # model that is clearly not of this family; otherwise `holds` decides by reading the result
    # again.
    read: Callable[["HubConfig"], DecoderConfig]
    write: Callable[[DecoderConfig], dict[str, Any] | None]
    # Prefix of all tensor names except the head's; some files lack it.
    prefix: str = "model."
    # Architecture with a score or classes as its head; "" for the usual name.
    score_architecture: str = ""
    # Tensors of the heads for other things than tokens, by head. None: a decoder's linear layer
    # without a bias.
    heads: Mapping[Head, tuple[TensorName, ...]] | None = None
    # Method of quantisation, by its name in config.json, that an import undoes.
    quantised: str = ""
    # Published files name custom code that Transformers has adopted since, with its class names.
    adopted: bool = False
    # Pattern of the names of tensors in published files that the model does not use.
    surplus: str = ""

    def find_architecture(self, config: DecoderConfig) -> str:
        """Return Transformers' name of the architecture of a model of `config`."""
        if config.head == "tokens":
            return self.architecture
        if self.score_architecture:
            return self.score_architecture
        return f"{self.stem}{ENDINGS[config.head]}"

    @property
    def stem(self) -> str:
        """The beginning of the architectures' names, without the head."""
        stem = self.architecture
        for ending in OF_TOKENS:
            stem = stem.removesuffix(ending)
        return stem

    def list_head_tensors(self, head: Head) -> tuple[TensorName, ...]:
        """Return the tensors of a `head` for something other than tokens."""
        if self.heads is None:
            return (map_one("head.weight", "score.weight"),)
        return self.heads.get(head, ())

    def holds(self, config: DecoderConfig) -> bool:
        """Return whether a model of `config` can be exported as this family.

        The settings are written, read again and compared.
        """
        if self.heads is not None and config.head not in ("tokens", *self.heads):
            return False
        written = self.write(config.plain)
        if written is None:
            return False
        try:
            again = self.read(HubConfig(written, "config.json"))
        except (DataError, ConfigError):
            return False
        poolers = {getattr(model, "pooler", None) for model in (again, config)}
        if config.head == "classes" and len(poolers) > 1:
            return False
        return strip_config(again) == strip_config(config.with_head("tokens"))


def strip_config(config: DecoderConfig) -> dict[str, Any]:
    """Return the settings that determine what a model of `config` computes, with defaults resolved.

    Left out is what matters only in training: initial weights, router losses, further heads and a
    generator; and the pooler, which only classifiers use.
    """
    config = config.plain
    left_out = {"initial_std", "initialisation", "generator", "pooler", "further_heads"}
    written = config.model_dump(mode="json", exclude=left_out)
    if "embedding_channels" in written:
        written["embedding_channels"] = written["embedding_channels"] or config.channels
    _write_out_layers(config, written)
    network = written["feedforward"]
    for key in ("balance_loss", "router_z_loss"):
        network.pop(key, None)
    if "expert_channels" in network:
        width = network["expert_channels"] or config.shape.feedforward_channels
        network["expert_channels"] = written["feedforward_channels"] = width
        return written | vars(config.shape) | {"feedforward_channels": width}
    return written | vars(config.shape)


def _write_out_layers(config: DecoderConfig, written: dict[str, Any]) -> None:
    """Write out patterns of layers as one entry a layer, and the default query scale."""
    attention = written["attention"]
    attention["query_scale"] = attention["query_scale"] or config.shape.head_channels**-0.5
    window = config.attention.window
    if window is not None:
        attention["window"]["pattern"] = [window.is_local(n) for n in range(config.layers)]
    rope = config.position_embedding
    if isinstance(rope, layer_settings.Rope):
        rotated = [rope.is_rotated(layer) for layer in range(config.layers)]
        written["position_embedding"]["pattern"] = rotated


class HubConfig:
    """Keys of a config.json, whose errors name the file."""

    def __init__(self, given: Mapping[str, Any], path: str) -> None:
        self.given = given
        self.path = path

    def need(self, key: str) -> Any:
        """Return the value of `key`, or raise DataError if it is missing or null."""
        value = self.given.get(key)
        if value is None:
            raise DataError(f"{self.path}: no key {key!r}; save the model again")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or Transformers' `default` if it is missing or null."""
        value = self.given.get(key)
        return default if value is None else value

    def take(self, key: str, default: Any) -> Any:
        """Return the value of `key`, `default` if the key is missing, and None if it is null."""
        return self.given.get(key, default)

    def get_positive(self, key: str, default: float) -> Any:
        """Return the value of `key`, or `default` if it is missing or null.

        Raises DataError if the value is not a number above 0.
        """
        value = self.take_positive(key, default)
        return default if value is None else value

    def take_positive(self, key: str, default: float | None) -> Any:
        """Return the value of `key`, `default` if the key is missing, and None if it is null.

        Raises DataError if the value is not a number above 0.
        """
        value = self.take(key, default)
        if value is not None and (type(value) not in (int, float) or value <= 0):
            raise DataError(f"{self.path}: {key} is {value!r}; it must be a number above 0")
        return value

    def get_table(self, key: str) -> dict[str, Any]:
        """Return the table `key`, empty if it is missing or null.

        Raises DataError if the value is not a table.
        """
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise DataError(f"{self.path}: {key} is {value!r}; it must be a table")
        return value

    def with_defaults(self, **defaults: Any) -> "HubConfig":
        """Return these keys, with `defaults` for keys that are missing or null."""
        given = {key: value for key, value in self.given.items() if value is not None}
        return HubConfig({**defaults, **given}, self.path)

    def check_only(self, key: str, *wanted: Any) -> None:
        """Raise DataError if `key` has a value not in `wanted`; the first is its default."""
        value = self.given.get(key, wanted[0])
        if value not in wanted:
            can = " or ".join(repr(choice) for choice in wanted)
            raise DataError(
                f"{self.path}: {key} is {value!r}, which trainrig does not support; only models "
                f"with {can} can be imported"
            )

    def layer_types(self, layers: int) -> tuple[str, ...] | None:
        """Return `layer_types`, checked, or None if it is not given."""
        given = self.get("layer_types")
        if given is None:
            return None
        known = {"full_attention", "sliding_attention"}
        odd = sorted(set(given) - known)
        if odd or len(given) != layers:
            found = f"{odd[0]!r}" if odd else f"{len(given)} entries for {layers} layers"
            raise DataError(
                f"{self.path}: layer_types has {found}; only {', '.join(sorted(known))} of each "
                "layer can be imported"
            )
        return tuple(given)

    def build(self, model: type[DecoderConfig] = DecoderConfig, **settings: Any) -> DecoderConfig:
        """Return the `model` with these settings. Raises DataError if sizes do not fit."""
        return self.make(model, **settings, initial_std=self.get("initializer_range", 0.02))

    def make(self, part: type[Part], **settings: Any) -> Part:
        """Return the `part` of a model with these settings. Raises DataError if they do not fit."""
        try:
            return part(**settings)
        except ValidationError as error:
            raise DataError(f"{self.path}: {describe_invalid(error)}") from None


def describe_invalid(error: ValidationError) -> str:
    """Return which setting of trainrig is invalid, and why, on one line."""
    first = error.errors()[0]
    where = ".".join(str(name) for name in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    return f"invalid {where or 'sizes'}: {what}"


def find_dropouts(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the dropout rates above 0 in the config.json `given`, by key.

    Imported models have no dropout here, which changes only their training in Transformers.
    """
    return {
        key: float(value)
        for key, value in sorted(given.items())
        if "drop" in key and type(value) in (int, float) and value > 0
    }


def read_labels(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes in the config.json `given`, in the order of their ids.

    Transformers reads them from `id2label`, and assumes two classes by default.
    """
    named = given.get("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(given.get("num_labels", 2)))
    return tuple(str(named[key]) for key in sorted(named, key=int))


def write_labels(labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the config.json keys for the class names `labels`."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
