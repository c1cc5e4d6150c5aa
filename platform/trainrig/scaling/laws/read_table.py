"""Reader of tables of runs in any format: a sweep's folder, Parquet or CSV."""

from collections.abc import Mapping

from trainrig import storage
from trainrig.errors import DataError
from trainrig.scaling.laws.csv_tables import read_csv
from trainrig.scaling.laws.runs_table import RUNS_FILE, RunsTable, read_parquet


def read_table(path: str, columns: Mapping[str, str] | None = None) -> RunsTable:
    """Read the table of runs at `path`: a sweep's folder, a `.parquet` file or a `.csv` file.

    `columns` maps our column names to a CSV's headers: `{"loss": "eval/loss"}`. Raises DataError if
    there is no such table or it is invalid.
    """
    if path.lower().endswith(".csv"):
        return read_csv(path, columns or {})
    if columns:
        raise DataError(
            f"{path}: --column works with a CSV only; {RUNS_FILE} has fixed column names"
        )
    if not path.endswith(".parquet") and storage.exists(path):
        raise DataError(
            f"{path}: no table of runs; give the folder of a finished sweep, its {RUNS_FILE}, "
            "or a table with a header line whose name ends in .csv"
        )
    return read_parquet(path if path.endswith(".parquet") else storage.join(path, RUNS_FILE))
