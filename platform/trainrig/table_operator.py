"""Base of the operators of `trainrig.data`: settings that turn one Arrow table into another.

An operator is pickled with its settings, and loads models at first use in a worker, so one works
as an argument of `ray.data.Dataset.map_batches`, and without Ray on any table. The rows that it
returns depend on the rows of the table alone, and it keeps the columns that it does not know.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainrig import config
from trainrig.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


class TableOperator(config.Settings):
    """A step of a pipeline: its settings, and a call that computes a table from a table."""

    def __init__(self, **keys: Any) -> None:
        """Check the settings; lists stand for tuples, and dictionaries for tables of settings.

        Paths become absolute, because a worker may run in another directory. Raises ConfigError, in
        one line, for the first invalid key.
        """
        try:
            super().__init__(**config.freeze(keys))
        except ValidationError as error:
            name = type(self).__name__
            raise ConfigError(config.describe_error(type(self), error, keys, name)) from None
        vars(self).update(vars(config.with_absolute_paths(self)))

    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Return the table that this step makes of `rows`."""
        raise NotImplementedError

    def require_columns(self, rows: "pa.Table", names: Sequence[str], remedy: str) -> None:
        """Raise ConfigError with the `remedy` if `rows` lack one of the columns `names`."""
        missing = [name for name in names if name not in rows.column_names]
        if missing:
            more = ", …" if len(missing) > 3 else ""
            raise ConfigError(
                f"{type(self).__name__}: the rows have no column {', '.join(missing[:3])}{more}; "
                f"{remedy}"
            )


def read_strings(column: "pa.ChunkedArray") -> list[str]:
    """Return the values of a column of strings; a null becomes the empty string."""
    values: list[str | None] = column.to_pylist()
    return [value or "" for value in values] if column.null_count else values  # type: ignore[return-value]


def put_column(rows: "pa.Table", name: str, values: "pa.Array") -> "pa.Table":
    """Return `rows` with the column `name`, in its place if there is one, otherwise at the end."""
    if name in rows.column_names:
        return rows.set_column(rows.column_names.index(name), name, values)
    return rows.append_column(name, values)
