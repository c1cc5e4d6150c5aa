"""Predictions for a table of sizes: `trainrig predict --csv`, as CSV or JSON."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws import runs_columns, runs_files
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_forms import FLOPS_PER_PARAMETER_AND_TOKEN
from trainrig.scaling.plan.loss_prediction import LossPrediction, predict_loss

_COLUMNS = ("parameters", "total_parameters", "tokens", "flops", "unique_tokens", "epochs")


def predict_table(law: Law, path: str) -> list[LossPrediction]:
    """Predict the loss of each row of the CSV or TSV file at `path`, in the order of the file.

    It needs columns for parameters, counted as `law` counts them, and for tokens or FLOPs (6ND).
    Columns for unique tokens or epochs are optional. Raises DataError, with the line, for a row
    that cannot be predicted.
    """
    table = runs_files.parse(path)
    headers = {name: runs_columns.find_header(table.cells, name) for name in _COLUMNS}
    found = {name: table.parse_numbers(header) for name, header in headers.items() if header}
    _choose_parameters(law, path, headers, found)
    _refuse_missing(path, found)
    if "tokens" not in found:
        sizes = np.where(found["parameters"] > 0, found["parameters"], np.nan)
        found["tokens"] = found["flops"] / (FLOPS_PER_PARAMETER_AND_TOKEN * sizes)
    predictions = []
    for row, line in enumerate(table.lines):
        options = {
            name: float(found[name][row])
            for name in ("epochs", "unique_tokens")
            if name in found and not np.isnan(found[name][row])
        }
        size = float(found["parameters"][row]), float(found["tokens"][row])
        if size[0] <= 0:
            raise DataError(f"{path}:{line}: parameters {size[0]:g}: give a number above 0")
        if np.isnan(size).any():
            raise DataError(f"{path}:{line}: a row needs numbers of parameters and of tokens")
        try:
            predictions.append(predict_loss(law, *size, **options))
        except ConfigError as why:
            raise DataError(f"{path}:{line}: {str(why).removeprefix('predict: ')}") from None
    return predictions


def _choose_parameters(
    law: Law, path: str, headers: dict[str, str | None], found: dict[str, Any]
) -> None:
    """Set the parameters of `found` to those that `law` counts: with embeddings, or without.

    A header such as `parameters` does not say which they are, and is taken as `law` counts. Raises
    DataError if the only column is one of the other parameters.
    """
    total = found.pop("total_parameters", None)
    header = headers["parameters"]
    words = (header or "").lower()
    other = "non" in words or "no_embed" in words  # embeddings are left out
    if law.parameters_count == "total":
        if total is not None:
            found["parameters"] = total
        elif other:
            raise DataError(
                f"{path}: column '{header}' leaves out embeddings, and the law counts them; give "
                "a column total_parameters"
            )
    elif header is None and total is not None:
        raise DataError(
            f"{path}: column '{headers['total_parameters']}' counts embeddings, and the law leaves "
            "them out; give a column non_embedding_parameters"
        )


def _refuse_missing(path: str, found: dict[str, Any]) -> None:
    for name, other in (("parameters", "parameters"), ("tokens", "flops")):
        if name not in found and other not in found:
            raise DataError(
                f"{path}: no column for {name}; give it one of the names "
                f"{', '.join(runs_columns.list_names(name))}"
            )


def format_csv(predictions: Sequence[LossPrediction]) -> str:
    """Return `predictions` as CSV with a header line and no line break at its end.

    An interval without an end on one side has an empty cell there.
    """
    tasks = [task.task for task in predictions[0].tasks]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["parameters", "tokens", "unique_tokens", "flops_6nd", "loss", "low", "high", "level"]
        + [f"{task}{part}" for task in tasks for part in ("", "_low", "_high")]
        + ["warnings"]
    )
    for found in predictions:
        scores: list[float | None] = []
        for task in found.tasks:
            bounds = task.interval
            scores += [task.score, bounds.low if bounds else None, bounds.high if bounds else None]
        interval = found.loss_interval
        ends = [interval.low, interval.high, interval.level] if interval else [None] * 3
        size = [found.parameters, found.tokens, found.unique_tokens, found.flops_6nd]
        writer.writerow([*size, found.loss, *ends, *scores, " ".join(found.warnings)])
    return text.getvalue().rstrip("\n")
