"""What `trainrig fit` does: tables in; a law, or several recipes compared, printed and kept."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainrig import config, storage
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws import recipes, summary
from trainrig.scaling.laws.fit import LawFit, counted, fit_law, read_runs, write_fit
from trainrig.scaling.laws.fit_progress import Progress
from trainrig.scaling.laws.pages.fit_page import write_fit_page
from trainrig.scaling.laws.recipes import RecipeFit, compare
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.storage.writable import check_folder

RECIPES_FILE = "recipes.json"

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
    "outliers": "exclusions.outliers",
    "nearest": "isoflop.nearest",
    "within": "isoflop.within",
}


@dataclass(frozen=True)
class Tables:
    """What is to be fitted."""

    paths: tuple[str, ...]
    columns: Mapping[str, str]  # our name -> a CSV's header
    recipes: tuple[str, ...] = ()  # of those in the tables; none: all
    share: str | None = None  # between recipes; None: what RecipeFit says


def settings_of(options: Mapping[str, Any]) -> LawFit:
    """LawFit from the command line's options; None is an option not given. Raises ConfigError."""
    data: dict[str, Any] = {}
    for option, value in options.items():
        if value is None:
            continue
        if option == "delta":
            data["loss"] = {"kind": "Huber", "delta": value} if value else {"kind": "Lad"}
            continue
        if option == "within" and value == 0:
            value = None  # all sizes
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


def fit(
    tables: Tables,
    settings: LawFit,
    out: str | None,
    as_json: bool,
    progress: Progress | None = None,
) -> str:
    """The text to print; several tables, or recipes, are compared instead of fitted as one.

    Writes `law.json` and its page, or `recipes.json`, into `out`, where that is given.
    """
    if out:
        check_folder(out)
    if len(tables.paths) > 1 or len(tables.recipes) > 1:
        return _compare(tables, settings, out, as_json)
    runs = read_runs(tables.paths, dict(tables.columns), tables.recipes)
    name = tables.recipes[0] if tables.recipes else _stem(tables.paths[0])
    try:
        fitted = fit_law(runs, settings, name, tables.paths[0], progress)
    except DataError as why:
        raise DataError(f"{tables.paths[0]}: {why}") from None
    written = [write_fit(out, fitted), write_fit_page(out, fitted)] if out else []
    if as_json:
        data = fitted.law.model_dump(mode="json", exclude={"draws"})
        return json.dumps({**data, "written": written})
    return "\n".join([*summary.lines(fitted.law), *(f"wrote {path}" for path in written)])


def _compare(tables: Tables, settings: LawFit, out: str | None, as_json: bool) -> str:
    if settings.form not in (None, "Parametric"):
        raise ConfigError(f"--form {settings.form}: recipes are compared by the Parametric law")
    given = {"share": tables.share} if tables.share else {}
    how = config.build(RecipeFit, given, "fit").model_copy(
        update={name: getattr(settings, name) for name in ("loss", "exclusions", "bootstrap")}
    )
    named = {name: counted(runs, settings.counts) for name, runs in _named(tables)}
    found = compare(named, how)
    data = found.model_dump(mode="json")
    written = []
    if out:
        written.append(storage.join(out, RECIPES_FILE))
        storage.write(written[0], f"{json.dumps(data, indent=2, allow_nan=False)}\n".encode())
    if as_json:
        return json.dumps({**data, "written": written})
    return "\n".join([*recipes.lines(found), *(f"wrote {path}" for path in written)])


def _named(tables: Tables) -> Iterator[tuple[str, RunsTable]]:
    """Each recipe's runs: a table each, or those of one table by the name of the recipe."""
    columns = dict(tables.columns)
    if len(tables.paths) == 1:
        for recipe in tables.recipes:
            yield recipe, read_runs(tables.paths, columns, [recipe])
        return
    if tables.recipes:
        raise ConfigError("--recipe chooses within one table; of several, each is one recipe")
    stems = [_stem(path) for path in tables.paths]
    for path, stem in zip(tables.paths, stems, strict=True):
        yield stem if stems.count(stem) == 1 else path, read_runs([path], columns)


def _stem(path: str) -> str:
    """A table's name: its file's, or its folder's where all files are called the same."""
    pure = PurePosixPath(path)
    return (pure.parent if pure.stem == "runs" and pure.parent.name else pure).stem
