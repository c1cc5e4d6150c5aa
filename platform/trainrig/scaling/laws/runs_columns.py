"""Columns that a table of runs may have: accepted headers, units and spellings of numbers.

Headers are compared without case, and with every other character than letters and digits as `_`:
`val/loss`, `Val Loss` and `val_loss` are the same. A unit in brackets scales the numbers: `Model
Size (M)` is in millions.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.command_line import parse_quantity
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.law_forms import Array

# Other headers that are accepted for our columns.
SYNONYMS = {
    "parameters": (
        "params",
        "n_params",
        "n",
        "num_params",
        "model_size",
        "non_embedding_parameters",
        "params_no_embed",
    ),
    "total_parameters": ("total_params",),
    "tokens": ("d", "n_tokens", "num_tokens", "train_tokens", "training_tokens"),
    "flops": ("c", "compute", "training_flops", "train_flops"),
    "loss": (
        "val_loss",
        "validation_loss",
        "eval_loss",
        "test_loss",
        "final_loss",
        "final_val_loss",
    ),
    "recipe": ("dataset", "corpus"),
    "unique_tokens": ("unique",),
    "trial": ("run", "run_name", "run_id"),
    "step": ("steps", "iteration", "iter", "global_step"),
    "learning_rate": ("lr", "train_lr", "rate"),
}
# Headers of losses in other units than nats per token.
OTHER_UNITS = {
    "perplexity": "perplexity",
    "ppl": "perplexity",
    "val_ppl": "perplexity",
    "bits_per_token": "bits per token",
    "loss_bits": "bits per token",
    "bits_per_byte": "bits per byte",
    "bpb": "bits per byte",
    "val_bpb": "bits per byte",
}
_UNIT = re.compile(r"\s*[\(\[]([a-z]+)[\)\]]\s*$", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*[a-z]?", re.IGNORECASE)
_SCALES = {
    **dict.fromkeys(("k", "thousand", "thousands"), 1e3),
    **dict.fromkeys(("m", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "g", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "trillion", "trillions"), 1e12),
}


def find_header(headers: Collection[str], name: str) -> str | None:
    """Return the header of the column for our column `name`, or None if there is none."""
    known = {normalise(header): header for header in headers}
    return next((known[spelling] for spelling in list_names(name) if spelling in known), None)


def list_names(name: str) -> Sequence[str]:
    """Return our column name and its synonyms."""
    return (name, *SYNONYMS.get(name, ()))


def normalise(header: str) -> str:
    """Return a header in lower case, without a unit in brackets, and with `_` between words."""
    bare = _UNIT.sub("", header) if find_scale(header) != 1 else header
    return re.sub(r"[^a-z0-9]+", "_", bare.lower()).strip("_")


def find_scale(header: str) -> float:
    """Return the factor of the unit in the header's brackets: 1e6 for `Model Size (M)`."""
    found = _UNIT.search(header)
    return _SCALES.get(found[1].lower(), 1.0) if found else 1.0


def parse_number(cell: str, scale: float = 1.0) -> float:
    """Parse a cell such as `1e7`, `10M`, `1,000` or `nan`, with NaN for an empty one.

    `scale` is the factor of the header's unit. A unit in the cell counts instead. Raises
    ConfigError if the cell is no number, or has a comma that does not separate thousands.
    """
    text = cell.strip()
    if not text:
        return float("nan")
    try:
        return float(text) * scale
    except ValueError:
        if "," in text and not _THOUSANDS.fullmatch(text):
            raise ConfigError(f"'{text}' is not a number; write decimals with a point") from None
        return parse_quantity(text) * (1.0 if text[-1].isalpha() else scale)


@dataclass(frozen=True)
class OtherUnit:
    """Column of losses that are not in nats per token."""

    header: str
    unit: str

    def convert_to_nats(self, losses: Array, bytes_per_token: float | None) -> Array:
        """Return the losses in nats per token.

        Raises DataError for losses per byte without `bytes_per_token`.
        """
        if self.unit == "perplexity":
            return np.log(losses)
        if self.unit == "bits per token":
            return losses * math.log(2)
        if bytes_per_token is None:
            raise DataError(
                f"column '{self.header}' has losses in bits per byte, and laws are fitted to nats "
                "per token; give the mean length of a token with --bytes-per-token, such as 4.4"
            )
        return losses * math.log(2) * bytes_per_token


def find_other_unit(headers: Collection[str]) -> OtherUnit | None:
    """Return the column of losses in another unit, or None if there is none."""
    for header in headers:
        if unit := OTHER_UNITS.get(normalise(header)):
            return OtherUnit(header, unit)
    return None
