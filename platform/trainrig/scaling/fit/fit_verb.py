"""Implementation of `trainrig fit`: read tables, fit or compare laws, write results."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainrig import config, storage
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.fit import law_summary, objective_comparison, recipe_comparison
from trainrig.scaling.fit.fit_page import write_fit_page
from trainrig.scaling.fit.law_fit import LawFit, count_parameters_as, fit_law, read_runs, write_fit
from trainrig.scaling.fit.objective_comparison import ObjectiveComparison, compare_objectives
from trainrig.scaling.fit.objectives_page import write_objectives_page
from trainrig.scaling.fit.recipe_comparison import Comparison, RecipeFit, compare
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_formats import name_objective
from trainrig.scaling.laws.runs_files import TEXT_SUFFIXES
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.regression import Progress
from trainrig.storage.writable import check_folder

RECIPES_FILE = "recipes.json"
OBJECTIVES_FILE = "objectives.json"

# Command-line option to key of LawFit.
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
    """Tables that `trainrig fit` reads, and how it splits them into recipes."""

    paths: tuple[str, ...]
    columns: Mapping[str, str]  # our column name to the CSV's header
    recipes: tuple[str, ...] = ()  # recipes to fit; none: all in the tables
    share: str | None = None  # constants that recipes share; None: the default of RecipeFit
    bytes_per_token: float | None = None  # mean bytes of a token, for losses per byte

    def read(self, paths: Sequence[str], recipes: Sequence[str] = ()) -> RunsTable:
        """Read the rows of `paths`, restricted to `recipes` if given."""
        return read_runs(paths, dict(self.columns), recipes, self.bytes_per_token)


def build_settings(options: Mapping[str, Any]) -> LawFit:
    """Build LawFit from command-line options, where None is an option that was not given.

    Raises ConfigError for an invalid value.
    """
    data: dict[str, Any] = {}
    for option, value in options.items():
        if value is None:
            continue
        if option == "delta":
            data["loss"] = {"kind": "Huber", "delta": value} if value else {"kind": "Lad"}
            continue
        if option == "within" and value == 0:
            value = None  # isoFLOP curves are fitted to all sizes
        *path, last = KEYS[option].split(".")
        table = data
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return config.build(LawFit, data, "fit")


def parse_columns(given: Sequence[str]) -> dict[str, str]:
    """Parse options such as `loss=eval/loss` into a mapping. Raises ConfigError without a `=`."""
    for text in given:
        if "=" not in text:
            raise ConfigError(f"--column {text}: write it as --column loss=HEADER")
    return dict(text.split("=", 1) for text in given)


@dataclass(frozen=True)
class FitAnswer:
    """Law or comparison that a fit found, its description, and the files that were written."""

    found: Law | Comparison | ObjectiveComparison
    lines: tuple[str, ...]  # the description, for a terminal
    written: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what was found as a JSON object, without the bootstrap draws of a law."""
        left_out = {"draws"} if isinstance(self.found, Law) else None
        data = self.found.model_dump(mode="json", exclude=left_out)
        return {**data, "written": list(self.written)}


def fit(
    tables: Tables,
    settings: LawFit,
    out: str | None,
    as_json: bool,
    progress: Progress | None = None,
) -> str:
    """Fit one law, or compare several tables or recipes, and return the text to print."""
    answer = find_answer(tables, settings, out, progress)
    if as_json:
        return json.dumps(answer.to_json())
    return "\n".join([*answer.lines, *(f"wrote {path}" for path in answer.written)])


def find_answer(
    tables: Tables, settings: LawFit, out: str | None, progress: Progress | None = None
) -> FitAnswer:
    """Fit one law, or compare several tables or recipes.

    Writes `law.json`, `recipes.json` or `objectives.json`, and the pages, into `out` if given.
    """
    if out:
        check_folder(out)
    if len(tables.paths) > 1 or len(tables.recipes) > 1:
        return _compare(tables, settings, out, progress)
    runs = tables.read(tables.paths, tables.recipes)
    name = tables.recipes[0] if tables.recipes else _split_path(tables.paths[0])[-1]
    try:
        fitted = fit_law(runs, settings, name, tables.paths[0], progress)
    except DataError as why:
        raise DataError(f"{tables.paths[0]}: {why}") from None
    written = (write_fit(out, fitted), write_fit_page(out, fitted)) if out else ()
    return FitAnswer(fitted.law, tuple(law_summary.describe_law(fitted.law)), written)


def _compare(
    tables: Tables, settings: LawFit, out: str | None, progress: Progress | None
) -> FitAnswer:
    named = dict(_name_recipes(tables))
    trained_for = {objective for runs in named.values() for objective in runs.objective.tolist()}
    if len(trained_for) > 1:
        if len(tables.paths) == 1:
            raise DataError(
                f"{tables.paths[0]}: its recipes are trained for {len(trained_for)} objectives "
                f"({', '.join(sorted(map(name_objective, trained_for)))}), but recipes are "
                "compared by the loss of one; give `fit` a separate table for each objective"
            )
        return _compare_objectives(named, tables, settings, out, progress)
    if settings.form not in (None, "Parametric"):
        raise ConfigError(f"--form {settings.form}: recipes are compared by the Parametric law")
    given = {"share": tables.share} if tables.share else {}
    how = config.build(RecipeFit, given, "fit").model_copy(
        update={name: getattr(settings, name) for name in ("loss", "exclusions", "bootstrap")}
    )
    named = {name: count_parameters_as(runs, settings.counts) for name, runs in named.items()}
    found = compare(named, how)
    data = found.model_dump(mode="json")
    written = []
    if out:
        written.append(storage.join(out, RECIPES_FILE))
        storage.write(written[0], f"{json.dumps(data, indent=2, allow_nan=False)}\n".encode())
    lines = tuple(recipe_comparison.describe_comparison(found))
    return FitAnswer(found, lines, tuple(written))


def _compare_objectives(
    named: Mapping[str, RunsTable],
    tables: Tables,
    settings: LawFit,
    out: str | None,
    progress: Progress | None,
) -> FitAnswer:
    """Fit one law for each objective, write each to its own folder, and compare them."""
    if tables.share is not None or settings.form not in (None, "Parametric"):
        given = "--share" if tables.share is not None else f"--form {settings.form}"
        raise ConfigError(
            f"{given}: the tables are of several objectives, which share no constants and are "
            f"compared by the Parametric law; leave out {given}"
        )
    how = settings.model_copy(update={"form": "Parametric"})
    fits = []
    written = []
    for (name, runs), path in zip(named.items(), tables.paths, strict=True):
        try:
            fitted = fit_law(runs, how, name, path, progress)
        except DataError as why:
            raise DataError(f"{path}: {why}") from None
        fits.append(fitted)
    found = compare_objectives(fits)
    if out:
        for fitted in fits:
            folder = storage.join(out, fitted.law.name)
            written += [write_fit(folder, fitted), write_fit_page(folder, fitted)]
        data = json.dumps(found.model_dump(mode="json"), indent=2, allow_nan=False)
        written.append(storage.join(out, OBJECTIVES_FILE))
        storage.write(written[-1], f"{data}\n".encode())
        written.append(write_objectives_page(out, found, fits))
    lines = tuple(objective_comparison.describe_objectives(found))
    return FitAnswer(found, lines, tuple(written))


def _name_recipes(tables: Tables) -> Iterator[tuple[str, RunsTable]]:
    """Yield the name and the runs of each recipe: one table each, or the recipes of one table."""
    if len(tables.paths) == 1:
        for recipe in tables.recipes:
            yield recipe, tables.read(tables.paths, [recipe])
        return
    if tables.recipes:
        raise ConfigError(
            "--recipe chooses within one table; of several tables, each is one recipe"
        )
    for path, name in zip(tables.paths, _name_tables(tables.paths), strict=True):
        yield name, tables.read([path])


def _name_tables(paths: Sequence[str]) -> list[str]:
    """Return a name for each table: its file name, after as many folders as make it unique.

    Raises ConfigError if two tables cannot be distinguished.
    """
    parts = [_split_path(storage.make_absolute(path)) for path in paths]
    names = []
    for own in parts:
        unique_lengths = (
            n for n in range(1, len(own) + 1) if sum(own[-n:] == other[-n:] for other in parts) == 1
        )
        names.append("-".join(own[-next(unique_lengths, len(own)) :]))
    for name, path in zip(names, paths, strict=True):
        if names.count(name) > 1:
            others = [
                other for other, its_name in zip(paths, names, strict=True) if its_name == name
            ]
            raise ConfigError(
                f"{path}: is given {len(others)} times, or has the same name as another table "
                f"({', '.join(others)}); give each table once, in folders with different names"
            )
    return names


def _split_path(path: str) -> tuple[str, ...]:
    """Return the folders above a table, then its name.

    It is the name of the file, or of its folder if the file is `runs.*`.
    """
    pure = PurePosixPath(path)
    named = pure.parent if pure.stem == "runs" and pure.parent.name else pure
    name = named.stem if named.suffix in (*TEXT_SUFFIXES, ".parquet") else named.name
    return *(part for part in named.parts[:-1] if part != "/"), name
