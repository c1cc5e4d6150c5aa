"""Tables of runs from where they are kept: a sweep's folder, Parquet, CSV."""

from collections.abc import Mapping

from trainrig import storage
from trainrig.errors import DataError
from trainrig.scaling.laws.csv_tables import read_csv
from trainrig.scaling.laws.runs_table import RUNS_FILE, RunsTable, read_parquet


def read_table(path: str, columns: Mapping[str, str] | None = None) -> RunsTable:
    """The table of a sweep's folder, of a runs.parquet, or of a CSV.

    `columns` names a CSV's own columns: `{"loss": "eval/loss"}`. Raises DataError.
    """
    if path.lower().endswith(".csv"):
        return read_csv(path, columns or {})
    if columns:
        raise DataError(f"{path}: only a CSV's columns can be named; {RUNS_FILE} has its own")
    if not path.endswith(".parquet") and storage.exists(path):
        raise DataError(
            f"{path}: no table of runs; give the folder of a finished sweep, its {RUNS_FILE}, "
            "or a table with a header line whose name ends in .csv"
        )
    return read_parquet(path if path.endswith(".parquet") else storage.join(path, RUNS_FILE))
