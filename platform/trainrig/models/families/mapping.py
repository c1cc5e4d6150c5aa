"""Descriptions of Hugging Face model families: tensor names and settings, in both directions.

"Ours" are trainrig's names and settings, "theirs" those of Transformers.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

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
# Buffers in old checkpoints (rotary rates, causal masks, position ids) that follow from settings.
DERIVED = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|position_ids)")


@dataclass(frozen=True)
class TensorName:
    """One or several tensors of ours, and the tensor of theirs that holds them.

    Several of ours are concatenated in theirs along the outputs. With `EXPERT` in `theirs`, each
    expert has a tensor of theirs, and ours is the stack of them.
    """

    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False  # theirs is stored as [inputs, outputs]


def map_one(ours: str, theirs: str, transposed: bool = False) -> TensorName:
    """Return the mapping of one tensor of ours to one of theirs."""
    return TensorName((ours,), theirs, transposed)


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
    network = written["feedforward"]
    for key in ("balance_loss", "router_z_loss"):
        network.pop(key, None)
    if "expert_channels" in network:
        width = network["expert_channels"] or config.shape.feedforward_channels
        network["expert_channels"] = written["feedforward_channels"] = width
        return written | vars(config.shape) | {"feedforward_channels": width}
    return written | vars(config.shape)


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
        try:
            return model(**settings, initial_std=self.get("initializer_range", 0.02))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = first["msg"].removeprefix("Value error, ")
            raise DataError(f"{self.path}: invalid {where or 'sizes'}: {what}") from None


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


def read_rope(
    config: HubConfig, kind: str | None = None, theta: float = 10_000.0
) -> layer_settings.Rope:
    """Return the rotary positions, under newer (`rope_parameters`) and older names.

    `kind` selects layers where `rope_parameters` has a table for each kind of layer; `theta` is the
    default base. Raises DataError for an unsupported type, and for two different bases.
    """
    table = config.get("rope_parameters", {})
    if kind is not None and kind in table:
        table = table[kind]
    old = config.get("rope_scaling", {})
    kinds = {
        _read_rope_type(settings)
        for settings in (table, old)
        if "rope_type" in settings or "type" in settings
    }
    if len(kinds) > 1:
        raise DataError(
            f"{config.path}: rope_parameters and rope_scaling ask for different types of rotary "
            f"positions: {' and '.join(sorted(kinds))}; leave one of the two out"
        )
    table = {**old, **table}
    thetas = [float(base) for base in (table.get("rope_theta"), config.get("rope_theta")) if base]
    if kind is None and len(set(thetas)) > 1:
        raise DataError(
            f"{config.path}: rope_theta is {thetas[1]}, but {thetas[0]} in rope_parameters; make "
            "both equal"
        )
    share = table.get("partial_rotary_factor") or config.get("partial_rotary_factor", 1.0)
    return layer_settings.Rope(
        theta=thetas[0] if thetas else theta,
        scaling=_read_scaling(config, table),
        rotated_share=float(share),
    )


def _read_rope_type(table: Mapping[str, Any]) -> str:
    return str(table.get("rope_type", table.get("type", "default")))


def _read_scaling(config: HubConfig, table: Mapping[str, Any]) -> layer_settings.RopeScaling | None:
    kind = _read_rope_type(table)
    original = table.get("original_max_position_embeddings")
    original = original or config.get("max_position_embeddings", 2048)
    try:
        match kind:
            case "default":
                return None
            case "linear":
                return layer_settings.LinearInterpolation(factor=table["factor"])
            case "llama3":
                return layer_settings.Llama3Scaling(
                    factor=table["factor"],
                    original_positions=original,
                    slow_turns=table["low_freq_factor"],
                    fast_turns=table["high_freq_factor"],
                )
            case "yarn":
                factor = table["factor"]
                if factor is None:
                    factor = config.get("max_position_embeddings", 2048) / original
                return layer_settings.YaRN(
                    factor=factor,
                    original_positions=original,
                    fast_turns=table.get("beta_fast") or 32.0,
                    slow_turns=table.get("beta_slow") or 1.0,
                    attention_factor=_read_yarn_attention(table, factor),
                    whole_channels=table.get("truncate", True),
                )
    except KeyError as error:
        raise DataError(
            f"{config.path}: rotary positions of type {kind!r} lack the key {error}"
        ) from None
    except ValidationError as error:
        raise DataError(
            f"{config.path}: rotary positions of type {kind!r}: {error.errors()[0]['msg']}"
        ) from None
    raise DataError(
        f"{config.path}: rotary positions of type {kind!r} cannot be imported; supported: default, "
        "linear, llama3, yarn"
    )


def _read_yarn_attention(table: Mapping[str, Any], factor: float) -> float | None:
    """Return the attention factor of YaRN, or None for the usual one.

    That is `attention_factor` if the file has it, otherwise the ratio that DeepSeek's `mscale` and
    `mscale_all_dim` give. Transformers looks them up in this order.
    """
    given: float | None = table.get("attention_factor")
    over = table.get("mscale")
    under = table.get("mscale_all_dim")
    if given is not None or not (over and under):
        return given
    growth = 0.1 * math.log(factor)
    return float((growth * over + 1) / (growth * under + 1))


def write_rope(rope: layer_settings.Rope) -> dict[str, Any]:
    """Return the config.json keys for rotary positions, under older and newer names."""
    table = {"rope_theta": rope.theta, **write_rope_table(rope)}
    scaled = rope.scaling is not None
    return {
        "rope_theta": rope.theta,
        "rope_scaling": write_rope_table(rope) if scaled else None,
        "rope_parameters": table,
    }


def write_rope_table(rope: layer_settings.Rope) -> dict[str, Any]:
    """Return the type and the parameters of rotary positions.

    Raises DataError for NTK-aware scaling, which Transformers has no name for.
    """
    share = {} if rope.rotated_share == 1 else {"partial_rotary_factor": rope.rotated_share}
    match rope.scaling:
        case None:
            return {"rope_type": "default", **share}
        case layer_settings.LinearInterpolation(factor=factor):
            return {"rope_type": "linear", "factor": factor, **share}
        case layer_settings.Llama3Scaling() as scaling:
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_positions,
                "low_freq_factor": scaling.slow_turns,
                "high_freq_factor": scaling.fast_turns,
                **share,
            }
        case layer_settings.YaRN() as scaling:
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_positions,
                "beta_fast": scaling.fast_turns,
                "beta_slow": scaling.slow_turns,
                "attention_factor": scaling.attention_factor,
                "truncate": scaling.whole_channels,
                **share,
            }
    # Transformers expresses an NTK-aware base as a plain theta.
    raise DataError(
        f"rotary scaling {rope.scaling.kind} has no equivalent in Transformers, so it cannot be "
        "exported"
    )
