"""Rotary positions in a config.json, under newer (`rope_parameters`) and older names."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.models.architecture import layer_settings
from trainrig.models.families.mapping import HubConfig


def read_rope(
    config: HubConfig, kind: str | None = None, theta: float = 10_000.0
) -> layer_settings.Rope:
    """Return the rotary positions, under newer (`rope_parameters`) and older names.

    `kind` selects layers where `rope_parameters` has a table for each kind of layer; `theta` is the
    default base. Raises DataError for an unsupported type, and for two different bases.
    """
    table = config.get_table("rope_parameters")
    if kind is not None and kind in table:
        table = table[kind]
    old = config.get_table("rope_scaling")
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
    bases = (table.get("rope_theta"), config.get("rope_theta"))
    thetas = [float(base) for base in bases if base is not None]
    if kind is None and len(set(thetas)) > 1:
        raise DataError(
            f"{config.path}: rope_theta is {thetas[1]}, but {thetas[0]} in rope_parameters; make "
            "both equal"
        )
    share = table.get("partial_rotary_factor")
    if share is None:
        share = config.get("partial_rotary_factor", 1.0)
    return config.make(
        layer_settings.Rope,
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


def write_partial_rope(rope: layer_settings.Rope) -> dict[str, Any]:
    """Return the keys of `write_rope` for families whose default is a part of each head."""
    share = {"partial_rotary_factor": rope.rotated_share}
    keys = write_rope(rope)
    return {**keys, "rope_parameters": {**keys["rope_parameters"], **share}, **share}


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
