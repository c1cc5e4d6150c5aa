"""`trainrig fit`: tables in; a law, or several recipes' laws compared, printed and kept."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.scaling import summary
from trainrig.scaling.fit import LawFit, fit_law, read_runs, write_fit

# Option of the command line -> key of LawFit.
KEYS = {
    "form": "form",
    "counts": "counts",
    "tokenizer": "tokenizer",
    "draws": "bootstrap.draws",
    "seed": "bootstrap.seed",
    "hold_out": "hold_out.share",
    "hold_out_by": "hold_out.by",
    "drop_highest": "exclusions.highest_losses",
    "nearest": "isoflop.nearest",
}


@dataclass(frozen=True)
class Tables:
    """What is to be fitted."""

    paths: tuple[str, ...]
    columns: Mapping[str, str]  # our name -> a CSV's header
    recipes: tuple[str, ...] = ()  # of those in the tables; none: all


def settings_of(options: Mapping[str, Any]) -> LawFit:
    """LawFit from the command line's options; None is an option not given. Raises ConfigError."""
    data: dict[str, Any] = {}
    for option, value in options.items():
        if value is None:
            continue
        if option == "delta":
            data["loss"] = {"kind": "Huber", "delta": value} if value else {"kind": "Lad"}
            continue
        *path, last = KEYS[option].split(".")
        table = data
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return config.build(LawFit, data, "fit")


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """`loss=eval/loss` as a mapping. Raises ConfigError."""
    for text in given:
        if "=" not in text:
            raise ConfigError(f"--column {text}: write it as --column loss=HEADER")
    return dict(text.split("=", 1) for text in given)


def fit(tables: Tables, settings: LawFit, out: str | None, as_json: bool) -> str:
    """The text to print. Writes `law.json` (and what shows it) into `out`, where that is given."""
    runs = read_runs(tables.paths, dict(tables.columns), tables.recipes)
    name = tables.recipes[0] if tables.recipes else _stem(tables.paths[0])
    fitted = fit_law(runs, settings, name, source=tables.paths[0])
    written = [write_fit(out, fitted)] if out else []
    if as_json:
        data = fitted.law.model_dump(mode="json", exclude={"draws"})
        return json.dumps({**data, "written": written})
    return "\n".join([*summary.lines(fitted.law), *(f"wrote {path}" for path in written)])


def _stem(path: str) -> str:
    """A table's name: its file's, or its folder's where all files are called the same."""
    pure = PurePosixPath(path)
    return (pure.parent if pure.stem == "runs" and pure.parent.name else pure).stem
