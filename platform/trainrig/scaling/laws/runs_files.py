"""Readers of tables of runs in any format: a sweep's folder, Parquet or CSV.

A CSV file has trainrig's column names, the user's names, or those of a publication. A published
table is recognised by its headers, and read with the conventions of its paper: what N counts, how D
follows where it is not given, and which loss is reported.
"""

import csv
import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import config, storage
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws import runs_columns, runs_table
from trainrig.storage.missing_folders import describe_origin

TEXT_SUFFIXES = (".csv", ".tsv")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Csv:
    """Cells of a CSV file by column."""

    path: str
    cells: Mapping[str, list[str]]
    lines: list[int]  # line number of each row; the header is line 1

    def parse_numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column as float64, with NaN for empty cells.

        Raises DataError with the line number of a cell that is not a number.
        """
        found = np.full(len(self.cells[name]), np.nan)
        scale = runs_columns.find_scale(name)
        for row, cell in enumerate(self.cells[name]):
            try:
                found[row] = runs_columns.parse_number(cell, scale)
            except ConfigError:
                message = f"{name} should be a number, found {cell!r}"
                raise DataError(f"{self.path}:{self.lines[row]}: {message}") from None
        return found


def read_csv(
    path: str, columns: Mapping[str, str], bytes_per_token: float | None = None
) -> runs_table.RunsTable:
    """Read the table of runs in a CSV or TSV file that has a header line.

    `columns` maps our column names to the file's headers; without it, published tables are
    recognised. Losses per byte need `bytes_per_token`. Raises DataError if the file is missing,
    malformed or lacks a column.
    """
    table = parse(path)
    if not columns:
        for headers, reader in PUBLISHED.items():
            if headers <= set(table.cells):
                return reader(table)
    return _read_named(table, columns, bytes_per_token)


def parse(path: str) -> Csv:
    """Read the cells of the CSV file at `path`, which must have a header line.

    Cells are separated by tabs, semicolons or commas, whichever the header has first in this order.
    Raises DataError if the file is missing, not UTF-8, empty, or has rows of another length.
    """
    try:
        text = storage.decode_utf8(storage.read(path))
    except FileNotFoundError:
        origin = describe_origin(path)
        raise DataError(f"{path}: no such file{origin}; give the path of a CSV of runs") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a CSV") from None
    except storage.NotUtf8 as error:
        raise DataError(f"{path}: {error}; the file must be a CSV in UTF-8") from None
    header_line = text.partition("\n")[0]
    separator = next((mark for mark in "\t;" if mark in header_line), ",")
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    numbered = [(reader.line_num, row) for row in reader if row]  # skips blank lines
    lines = [line for line, _ in numbered]
    rows = [row for _, row in numbered]
    if len(rows) < 2:
        raise DataError(
            f"{path}: no rows; a table of runs has a header line and a line for each run"
        )
    header = [name.strip() for name in rows[0]]
    for line, row in numbered[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}:{line}: {len(row)} cells under {len(header)} headers")
    cells = {name: [row[i] for row in rows[1:]] for i, name in enumerate(header)}
    return Csv(path, cells, lines[1:])


def _read_named(
    table: Csv, columns: Mapping[str, str], bytes_per_token: float | None
) -> runs_table.RunsTable:
    ours = (*runs_table.TEXTS, *runs_table.NUMBERS, "total_parameters")
    for name, header in columns.items():
        if name not in ours:
            hint = config.suggest_choice(name, ours)
            raise DataError(f"{table.path}: a table of runs has no column '{name}'{hint}")
        if header not in table.cells:
            hint = config.suggest_choice(header, table.cells)
            raise DataError(f"{table.path}: no column '{header}'{hint}")
    headers = {
        name: columns.get(name) or runs_columns.find_header(table.cells, name) for name in ours
    }
    found = {name: header for name, header in headers.items() if header}
    total = "total_parameters" in found and "parameters" not in found
    if total:
        found["parameters"] = found.pop("total_parameters")
    found.pop("total_parameters", None)
    unit = runs_columns.find_other_unit([found["loss"]] if "loss" in found else table.cells)
    if unit is not None:
        found["loss"] = unit.header
    _refuse_missing(table, found)
    given: dict[str, Any] = {
        name: table.cells[header] if name in runs_table.TEXTS else table.parse_numbers(header)
        for name, header in found.items()
    }
    if unit is not None:
        try:
            given["loss"] = unit.convert_to_nats(given["loss"], bytes_per_token)
        except DataError as why:
            raise DataError(f"{table.path}: {why}") from None
    if "tokens" not in given:
        given["tokens"] = given["flops"] / (6 * given["parameters"])
    runs = runs_table.RunsTable.of(**given, counts="total" if total else "non-embedding")
    return runs if "state" in found else _mark_intermediate(table, runs)


LEAST_ENDS = 6  # with fewer ends of training runs, no form can be fitted


def _mark_intermediate(table: Csv, runs: runs_table.RunsTable) -> runs_table.RunsTable:
    """Return `runs` with the rows before the last one of each training run marked as such.

    They were measured before the learning rate had decayed, so their losses are higher than that of
    a run that ends there. If too few ends would be left, all rows count as ends. Either way, a
    warning says so.
    """
    _, trial = np.unique(runs.trial, return_inverse=True)
    last = np.zeros(len(np.unique(trial)))
    np.maximum.at(last, trial, runs.tokens)
    along = runs.tokens < last[trial]
    if not along.any():
        return runs
    some = f"{table.path}: {int(along.sum())} of {len(runs)} rows are earlier points of a run"
    if (~along).sum() < LEAST_ENDS:
        log.warning(
            "%s. They count as ends of runs whose learning rate had decayed, because only %d rows "
            "would be left. If it had not decayed, add runs",
            *(some, int((~along).sum())),
        )
        return runs
    log.warning(
        "%s, before its learning rate had decayed. They are left out of the fit; if it had decayed "
        "at each row, add a column state with the word end",
        some,
    )
    return replace(runs, state=np.where(along, "along", runs.state))


def _refuse_missing(table: Csv, found: Mapping[str, str]) -> None:
    missing = [name for name in runs_table.NEEDED if name not in found]
    if "tokens" in missing and "flops" in found:
        missing.remove("tokens")
    if missing:
        raise DataError(
            f"{table.path}: no column for {', '.join(missing)} among "
            f"{', '.join(list(table.cells)[:12])}; name it with --column {missing[0]}=HEADER, or "
            f"give it a known name: {', '.join(runs_columns.list_names(missing[0]))}"
        )


# --- published tables


def _parse_chinchilla(table: Csv) -> runs_table.RunsTable:
    """Return the runs in figure 4 of Hoffmann et al. (arXiv:2203.15556).

    Besiroglu et al. 2024 read the points off the figure.
    """
    parameters = table.parse_numbers("Model Size")
    flops = table.parse_numbers("Training FLOP")
    return runs_table.RunsTable.of(
        parameters=parameters,
        tokens=flops / (6 * parameters),
        flops=flops,
        loss=table.parse_numbers("loss"),
        recipe="MassiveText",
        tokenizer="chinchilla",
        counts="total",
    )


def _parse_datablations(table: Csv) -> runs_table.RunsTable:
    """Return runs on repeated data from Muennighoff et al. (arXiv:2305.16264)."""
    return runs_table.RunsTable.of(
        name=table.cells["name"],
        parameters=table.parse_numbers("params"),
        tokens=table.parse_numbers("tokens"),
        unique_tokens=table.parse_numbers("unique_tokens"),
        loss=table.parse_numbers("loss"),
        recipe="C4",
        tokenizer="gpt2",
        counts="total",
    )


def _parse_gadre(table: Csv) -> runs_table.RunsTable:
    """Return over-trained models on three corpora from Gadre et al. (arXiv:2403.08540).

    N is the total number of parameters there. The loss is the one on C4's validation split.
    """
    losses = {
        h.removeprefix("loss_"): table.parse_numbers(h) for h in table.cells if h[:5] == "loss_"
    }
    without = table.parse_numbers("params_no_embed")
    return runs_table.RunsTable.of(
        name=table.cells["name"],
        recipe=table.cells["dataset"],
        parameters=without,
        embedding_parameters=table.parse_numbers("params") - without,
        tokens=table.parse_numbers("tokens"),
        flops=6 * table.parse_numbers("params") * table.parse_numbers("tokens"),
        loss=losses["c4_val"],
        losses=losses,
        tokenizer="gpt-neox",
    ).count_embeddings()


# Non-embedding parameters, and training FLOPs per token, of the models named in Bhagia et al.
# (arXiv:2412.04403), table 1 and `MODEL_FLOPS` in the paper's code.
OLMO_SIZES = {
    "190M": (190_354_176, 1_903_391_232),
    "370M": (371_262_464, 3_443_922_944),
    "760M": (758_220_288, 6_373_843_968),
    "1B": (1_279_395_840, 10_109_071_360),
    "3B": (3_169_537_280, 22_970_355_200),
}


def _parse_olmo(table: Csv) -> runs_table.RunsTable:
    """Return the model ladder of Bhagia et al. (arXiv:2412.04403), with losses on C4."""
    names = table.cells["run"]
    for line, name in enumerate(names, 2):
        if name.split("-")[0] not in OLMO_SIZES:
            raise DataError(f"{table.path}:{line}: '{name}' names no size of the OLMo ladder")
    sizes = np.array([OLMO_SIZES[name.split("-")[0]] for name in names], dtype=np.float64)
    tokens = table.parse_numbers("tokens")
    return runs_table.RunsTable.of(
        name=names,
        parameters=sizes[:, 0],
        tokens=tokens,
        flops=sizes[:, 1] * tokens,
        loss=table.parse_numbers("c4_val_loss"),
        seed=[float("rerun" in name) for name in names],
        recipe="OLMo-mix",
        tokenizer="dolma2",
    )


def _parse_porian(table: Csv) -> runs_table.RunsTable:
    """Return the best size at each budget, by study, from Porian et al. (arXiv:2406.19146).

    The rows are minima that the authors found: they determine N*(C), but not a loss as a function
    of N and D. FLOPs and N are counted as each study's `param_count` says.
    """
    cells = table.cells
    parts = ("dataset", "hparams", "warmup", "decay", "param_count", "val")
    study = ["/".join(values) for values in zip(*(cells[part] for part in parts), strict=True)]
    flops = table.parse_numbers("flops")
    return runs_table.RunsTable.of(
        name=[f"{s} at {c:.3g} FLOPs" for s, c in zip(study, flops, strict=True)],
        recipe=study,
        parameters=table.parse_numbers("n"),
        tokens=table.parse_numbers("t"),
        flops=flops,
        loss=table.parse_numbers("loss"),
        budget=flops,
        tokenizer="gpt-neox",
    )


Reader = Callable[[Csv], runs_table.RunsTable]
PUBLISHED: dict[frozenset[str], Reader] = {
    frozenset({"Model Size", "Training FLOP", "loss"}): _parse_chinchilla,
    frozenset({"name", "params", "params_no_embed", "cc_mult", "loss_c4_val"}): _parse_gadre,
    frozenset({"run", "step", "tokens", "c4_val_loss"}): _parse_olmo,
    frozenset({"flops", "n", "t", "multiplier", "loss", "hparams", "param_count"}): _parse_porian,
    frozenset({"name", "params", "tokens", "unique_tokens", "loss"}): _parse_datablations,
}


def read_table(
    path: str, columns: Mapping[str, str] | None = None, bytes_per_token: float | None = None
) -> runs_table.RunsTable:
    """Read the table of runs at `path`: a sweep's folder, or a Parquet, CSV or TSV file.

    `columns` maps our column names to a CSV's headers: `{"loss": "eval/loss"}`. Losses per byte of
    a CSV need `bytes_per_token`. Raises DataError if there is no such table or it is invalid.
    """
    if path.lower().endswith(TEXT_SUFFIXES):
        return read_csv(path, columns or {}, bytes_per_token)
    if columns:
        raise DataError(
            f"{path}: --column works with a CSV only; {runs_table.RUNS_FILE} has fixed column names"
        )
    if not path.endswith(".parquet") and storage.exists(path):
        raise DataError(
            f"{path}: no table of runs; give the folder of a finished sweep, its "
            f"{runs_table.RUNS_FILE}, or a table with a header line whose name ends in .csv or .tsv"
        )
    return runs_table.read_parquet(
        path if path.endswith(".parquet") else storage.join(path, runs_table.RUNS_FILE)
    )
