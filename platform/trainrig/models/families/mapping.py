"""What a family of Hugging Face models is: its settings and its tensors beside ours."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainrig.errors import ConfigError, DataError
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.positions import (
    LinearInterpolation,
    Llama3Scaling,
    Rope,
    RopeScaling,
    YaRN,
)
from trainrig.models.decoder_config import DecoderConfig

LAYER = "{layer}"  # in names of tensors: the number of the layer, from 0
# In those of a decoder beside an encoder: the number of its layer, after the encoder's in ours.
WRITING_LAYER = "{writing_layer}"
EXPERT = "{expert}"  # in their names: the number of the expert, from 0
# How architectures are called by their heads; those of tokens have several endings.
ENDINGS: Mapping[Head, str] = {
    "score": "ForSequenceClassification",
    "classes": "ForSequenceClassification",
    "spans": "ForQuestionAnswering",
    "replaced": "ForPreTraining",
}
OF_TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM")
# Tables of rotary rates, causal masks and places in old checkpoints: they follow from settings.
DERIVED = re.compile(r".*\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|position_ids)")


@dataclass(frozen=True)
class TensorName:
    """Tensors of ours, and the tensor of theirs that holds them.

    Several of ours lie one after the other in theirs, along its outputs. With `EXPERT` in `theirs`,
    each expert has a tensor, and ours is the stack of them.
    """

    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False  # whether theirs is [inputs, outputs]


def map_one(ours: str, theirs: str, transposed: bool = False) -> TensorName:
    """A tensor of ours that is one of theirs."""
    return TensorName((ours,), theirs, transposed)


@dataclass(frozen=True)
class Family:
    """Models that share an architecture of Transformers'."""

    model_type: str
    architecture: str
    # The table: every tensor that a model of the family can have, with LAYER for the layers.
    tensors: tuple[TensorName, ...]
    # Their settings as ours, and ours as theirs. The second gives None for a model that is none of
    # the family's, as far as it can tell: what it gives, read again, decides.
    read: Callable[["HubConfig"], DecoderConfig]
    write: Callable[[DecoderConfig], dict[str, Any] | None]
    # What stands before all names but the head's, and is left out in some files.
    prefix: str = "model."
    # That of its models with a score or classes instead of logits of tokens; "": named as most are.
    score_architecture: str = ""
    # What stands in place of the logits of tokens in models with other heads, by head; None: of a
    # decoder, a product without a bias.
    heads: Mapping[Head, tuple[TensorName, ...]] | None = None
    # Pattern of the names of tensors in published files that a model has no use for.
    surplus: str = ""

    def find_architecture(self, config: DecoderConfig) -> str:
        """The architecture of a model of `config`."""
        if config.head == "tokens":
            return self.architecture
        if self.score_architecture:
            return self.score_architecture
        return f"{self.stem}{ENDINGS[config.head]}"

    @property
    def stem(self) -> str:
        """What its architectures' names begin with."""
        stem = self.architecture
        for ending in OF_TOKENS:
            stem = stem.removesuffix(ending)
        return stem

    def list_head_tensors(self, head: Head) -> tuple[TensorName, ...]:
        """Those that a model with a `head` of another kind than tokens has for it."""
        if self.heads is None:
            return (map_one("head.weight", "score.weight"),)
        return self.heads.get(head, ())

    def holds(self, config: DecoderConfig) -> bool:
        """Whether a model of `config` can be written as one of this family's."""
        if self.heads is not None and config.head not in ("tokens", *self.heads):
            return False
        written = self.write(config.plain)
        if written is None:
            return False
        try:
            again = self.read(HubConfig(written, "config.json"))
        except (DataError, ConfigError):
            return False
        poolers = {getattr(each, "pooler", None) for each in (again, config)}
        if config.head == "classes" and len(poolers) > 1:
            return False
        return strip_config(again) == strip_config(config.with_head("tokens"))


def strip_config(config: DecoderConfig) -> dict[str, Any]:
    """What a model of `config` computes by: sizes settled, without what matters in training alone:
    fresh weights, losses of routers, and a generator; and without how classes are pooled, which
    models of other heads do not do."""
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
    """A config.json, read key by key; what is wrong with one is said with its place."""

    def __init__(self, given: Mapping[str, Any], path: str) -> None:
        self.given, self.path = given, path

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        value = self.given.get(key)
        if value is None:
            raise DataError(f"{self.path}: no key {key!r}; save the model again")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`; what Transformers takes where it is missing or null: `default`."""
        value = self.given.get(key)
        return default if value is None else value

    def check_only(self, key: str, *wanted: Any) -> None:
        """Raise DataError if `key` has another value than `wanted`, the first being its default."""
        value = self.given.get(key, wanted[0])
        if value not in wanted:
            can = " or ".join(repr(each) for each in wanted)
            raise DataError(
                f"{self.path}: {key} is {value!r}, which no model here does; only models with "
                f"{can} can be imported"
            )

    def layer_types(self, layers: int) -> tuple[str, ...] | None:
        """`layer_types`, checked; None if it is not given."""
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
        """The `model` of `settings`. Raises DataError for sizes that no such model has."""
        try:
            return model(**settings, initial_std=self.get("initializer_range", 0.02))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = first["msg"].removeprefix("Value error, ")
            raise DataError(f"{self.path}: as a model's {where or 'sizes'}: {what}") from None


def find_dropouts(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares that the config.json `given` has layers drop in training, by key, if above
    0. No model here drops any, which changes nothing but training in Transformers."""
    return {
        key: float(value)
        for key, value in sorted(given.items())
        if "drop" in key and type(value) in (int, float) and value > 0
    }


def read_labels(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes of the config.json `given`, in the order of their ids: Transformers
    counts them by `id2label`, and takes two where nothing is said."""
    named = given.get("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(given.get("num_labels", 2)))
    return tuple(str(named[key]) for key in sorted(named, key=int))


def write_labels(labels: tuple[str, ...]) -> dict[str, Any]:
    """The keys of a config.json that say so."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def read_rope(config: HubConfig, kind: str | None = None, theta: float = 10_000.0) -> Rope:
    """The rotary positions, under newer (`rope_parameters`) and older names.

    `kind`: of which layers, where `rope_parameters` has a table for each kind; `theta` where none
    is given. Raises DataError for a type that we do not have, and for two bases.
    """
    table = config.get("rope_parameters", {})
    if kind is not None and kind in table:
        table = table[kind]
    old = config.get("rope_scaling", {})
    kinds = {
        _read_rope_type(each) for each in (table, old) if "rope_type" in each or "type" in each
    }
    if len(kinds) > 1:
        raise DataError(
            f"{config.path}: rope_parameters and rope_scaling ask for different types of rotary "
            f"positions: {' and '.join(sorted(kinds))}; leave one of the two out"
        )
    table = {**old, **table}
    thetas = [float(each) for each in (table.get("rope_theta"), config.get("rope_theta")) if each]
    if kind is None and len(set(thetas)) > 1:
        raise DataError(f"{config.path}: rope_theta is {thetas[1]}, in rope_parameters {thetas[0]}")
    share = table.get("partial_rotary_factor") or config.get("partial_rotary_factor", 1.0)
    return Rope(
        theta=thetas[0] if thetas else theta,
        scaling=_read_scaling(config, table),
        rotated_share=float(share),
    )


def _read_rope_type(table: Mapping[str, Any]) -> str:
    return str(table.get("rope_type", table.get("type", "default")))


def _read_scaling(config: HubConfig, table: Mapping[str, Any]) -> RopeScaling | None:
    kind = _read_rope_type(table)
    original = table.get("original_max_position_embeddings")
    original = original or config.get("max_position_embeddings", 2048)
    try:
        match kind:
            case "default":
                return None
            case "linear":
                return LinearInterpolation(factor=table["factor"])
            case "llama3":
                return Llama3Scaling(
                    factor=table["factor"],
                    original_positions=original,
                    slow_turns=table["low_freq_factor"],
                    fast_turns=table["high_freq_factor"],
                )
            case "yarn":
                factor = table["factor"]
                if factor is None:
                    factor = config.get("max_position_embeddings", 2048) / original
                return YaRN(
                    factor=factor,
                    original_positions=original,
                    fast_turns=table.get("beta_fast") or 32.0,
                    slow_turns=table.get("beta_slow") or 1.0,
                    attention_factor=_read_yarn_attention(table, factor),
                    whole_channels=table.get("truncate", True),
                )
    except KeyError as error:
        raise DataError(
            f"{config.path}: rotary positions of type {kind!r} without {error}"
        ) from None
    except ValidationError as error:
        raise DataError(
            f"{config.path}: rotary positions of type {kind!r}: {error.errors()[0]['msg']}"
        ) from None
    raise DataError(
        f"{config.path}: asks for rotary positions of type {kind!r}; those that can be imported: "
        "default, linear, llama3, yarn"
    )


def _read_yarn_attention(table: Mapping[str, Any], factor: float) -> float | None:
    """Return `attention_factor` if the file has one, else what DeepSeek's two multiples of the
    usual factor come to, else None. Transformers takes them in this order."""
    given: float | None = table.get("attention_factor")
    over, under = table.get("mscale"), table.get("mscale_all_dim")
    if given is not None or not (over and under):
        return given
    growth = 0.1 * math.log(factor)
    return float((growth * over + 1) / (growth * under + 1))


def write_rope(rope: Rope) -> dict[str, Any]:
    """The keys of a config.json that say so, under older and newer names."""
    table = {"rope_theta": rope.theta, **write_rope_table(rope)}
    scaled = rope.scaling is not None
    return {
        "rope_theta": rope.theta,
        "rope_scaling": write_rope_table(rope) if scaled else None,
        "rope_parameters": table,
    }


def write_rope_table(rope: Rope) -> dict[str, Any]:
    """The type of rotary positions, with what belongs to it."""
    share = {} if rope.rotated_share == 1 else {"partial_rotary_factor": rope.rotated_share}
    match rope.scaling:
        case None:
            return {"rope_type": "default", **share}
        case LinearInterpolation(factor=factor):
            return {"rope_type": "linear", "factor": factor, **share}
        case Llama3Scaling() as scaling:
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_positions,
                "low_freq_factor": scaling.slow_turns,
                "high_freq_factor": scaling.fast_turns,
                **share,
            }
        case YaRN() as scaling:
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
    # NTK-aware bases have a plain theta of their own in Transformers.
    raise DataError(f"rotary scaling {rope.scaling.kind} has no name in Transformers")
