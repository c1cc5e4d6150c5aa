"""Base of the operators of `trainrig.data`: settings that turn one Arrow table into another.

An operator is pickled with its settings, and loads models at first use in a worker, so one works
as an argument of `ray.data.Dataset.map_batches`, and without Ray on any table. The rows that it
returns depend on the rows of the table alone, and it keeps the columns that it does not know.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import create_model

from trainrig import config
from trainrig.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


class TableOperator(ABC):
    """A step of a pipeline: its settings, and a call that computes a table from a table.

    A subclass declares its settings as a model does. It is not a model itself: for actors, Ray Data
    derives a class from the operator's, pickles that, and sets an attribute before the settings.
    """

    _settings: ClassVar[type[config.Settings]] = config.Settings

    def __init_subclass__(cls) -> None:
        """Build the model of the settings that the class declares.

        A private class without declarations, such as a class that Ray derives, keeps the settings
        of its base.
        """
        declared: dict[str, Any] = {
            name: (annotation, vars(cls).get(name, ...))
            for name, annotation in inspect.get_annotations(cls).items()
            if not name.startswith("_")
        }
        if declared or not cls.__name__.startswith("_"):
            cls._settings = create_model(
                cls.__name__, __base__=cls._settings, __module__=cls.__module__, **declared
            )

    def __init__(self, **keys: Any) -> None:
        """Check the settings; lists stand for tuples, and dictionaries for tables of settings.

        Paths become absolute, because a worker may run in another directory. Raises ConfigError, in
        one line, for the first invalid key.
        """
        given = config.build(self._settings, keys, self._settings.__name__)
        vars(self).update(config.list_fields(config.with_absolute_paths(given)))
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027 - a step without files needs none
        """Read the files that the settings name, and check that the settings fit together."""

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._settings.model_fields)
        return f"{self._settings.__name__}({given})"

    @abstractmethod
    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Return the table that this step makes of `rows`."""

    def require_columns(self, rows: "pa.Table", names: Sequence[str], remedy: str) -> None:
        """Raise ConfigError with the `remedy` if `rows` lack one of the columns `names`.

        Raises ConfigError too if they are no Arrow table, which Ray Data gives only on request.
        """
        if not hasattr(rows, "column_names"):
            raise ConfigError(
                f"{self._settings.__name__}: the rows are not an Arrow table; pass "
                '`batch_format="pyarrow"` to `map_batches`'
            )
        missing = [name for name in names if name not in rows.column_names]
        if missing:
            more = ", …" if len(missing) > 3 else ""
            raise ConfigError(
                f"{self._settings.__name__}: the rows have no column {', '.join(missing[:3])}"
                f"{more}; {remedy}"
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
