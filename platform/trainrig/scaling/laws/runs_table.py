"""Table of training runs with their sizes, tokens and losses, from which scaling laws are fitted.

A row is a point (N, D, loss): the end of a training run, or a point on its training curve. Rows
with the same `trial` are points of the same training run. `runs.parquet` is the table on disk,
written by a sweep. `runs_files.py` reads published tables.

Shapes: R rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.storage.missing_folders import describe_origin

RUNS_FILE = "runs.parquet"
NATS = "nats per token"
Counts = Literal["non-embedding", "total"]  # parameters that N counts
Floats = NDArray[np.float64]
Texts = NDArray[np.str_]

# States of a row. Laws are fitted to rows in state "end"; the envelope also uses "along".
STATES = (
    "end",  # the learning rate has decayed: the loss of a finished run or of a decayed branch
    "along",  # measured during training, before the learning rate decayed
    "unfinished",  # last measurement of a run that stopped early
    "diverged",  # last measurement of a run that diverged and was stopped
    "failed",  # run whose trial failed
)

RUNS_SCHEMA = pa.schema(
    [
        ("name", pa.string()),  # name of this row
        ("trial", pa.string()),  # training run that this row is a point of
        ("recipe", pa.string()),  # training corpus; a law holds for one corpus
        # Training objective, as `serialise_objective` writes it; "": next-token prediction.
        ("objective", pa.string()),
        ("state", pa.string()),  # one of STATES
        ("parameters", pa.float64()),  # N, without embeddings unless the metadata says "total"
        ("embedding_parameters", pa.float64()),
        ("tokens", pa.float64()),  # D, the trained tokens, with repeats
        ("unique_tokens", pa.float64()),  # different tokens available; null: no token was repeated
        ("flops", pa.float64()),  # counted exactly, or 6ND where there is no exact count
        ("flops_6nd", pa.float64()),
        ("loss", pa.float64()),  # held-out loss, in `unit`
        ("unit", pa.string()),
        ("budget", pa.float64()),  # FLOPs of the isoFLOP curve that the row belongs to
        ("seed", pa.float64()),
        ("seconds", pa.float64()),  # training time up to this row
        ("cost", pa.float64()),  # US dollars up to this row
        ("reason", pa.string()),  # why the run diverged or failed, otherwise empty
        ("tokenizer", pa.string()),  # fingerprint or name; "" where unknown
        ("losses", pa.map_(pa.string(), pa.float64())),  # keys are sources of the held-out text
        # By task on which the row's model was evaluated; empty if there were none:
        ("task_scores", pa.map_(pa.string(), pa.float64())),  # headline score
        ("task_errors", pa.map_(pa.string(), pa.float64())),  # standard error of the headline score
        ("task_losses", pa.map_(pa.string(), pa.float64())),  # nats per byte of the right answer
        ("task_chances", pa.map_(pa.string(), pa.float64())),  # score of random guessing
    ]
)
TEXTS = tuple(f.name for f in RUNS_SCHEMA if f.type == pa.string())
NUMBERS = tuple(f.name for f in RUNS_SCHEMA if f.type == pa.float64())
TASK_MAPS = ("task_scores", "task_errors", "task_losses", "task_chances")
MAPS = ("losses", *TASK_MAPS)
NEEDED = ("parameters", "tokens", "loss")
_COUNTS_KEY = b"parameters_count"


@dataclass(frozen=True, eq=False)
class RunsTable:
    """Columns of equal length R, as in RUNS_SCHEMA, with NaN for unknown numbers."""

    name: Texts
    trial: Texts
    recipe: Texts
    objective: Texts
    state: Texts
    parameters: Floats
    embedding_parameters: Floats
    tokens: Floats
    unique_tokens: Floats
    flops: Floats
    flops_6nd: Floats
    loss: Floats
    unit: Texts
    budget: Floats
    seed: Floats
    seconds: Floats
    cost: Floats
    reason: Texts
    tokenizer: Texts
    losses: Mapping[str, Floats]
    task_scores: Mapping[str, Floats]
    task_errors: Mapping[str, Floats]
    task_losses: Mapping[str, Floats]
    task_chances: Mapping[str, Floats]
    counts: Counts = "non-embedding"

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in (*TEXTS, *NUMBERS)}
        assert len(set(lengths.values())) == 1, lengths

    def __len__(self) -> int:
        return len(self.loss)

    @classmethod
    def of(
        cls,
        *,
        parameters: ArrayLike,
        tokens: ArrayLike,
        loss: ArrayLike,
        losses: Mapping[str, ArrayLike] | None = None,
        tasks: Mapping[str, Mapping[str, ArrayLike]] | None = None,
        counts: Counts = "non-embedding",
        **more: ArrayLike,
    ) -> "RunsTable":
        """Build a table from the known columns. A single value applies to all rows.

        `losses` are by source. `tasks` are by column of TASK_MAPS, then by task. By default `name`
        numbers the rows, each row is a separate trial, and `flops` is 6ND.
        """
        given = {"parameters": parameters, "tokens": tokens, "loss": loss, **more}
        assert set(given) <= {*TEXTS, *NUMBERS}, set(given) - {*TEXTS, *NUMBERS}
        rows = max((np.size(value) for value in given.values() if np.ndim(value)), default=1)
        numbers = {n: _convert_to_numbers(given.get(n, np.nan), rows) for n in NUMBERS}
        six = 6 * numbers["parameters"] * numbers["tokens"]
        numbers["flops_6nd"] = _fill_unknown(numbers["flops_6nd"], six)
        numbers["flops"] = _fill_unknown(numbers["flops"], numbers["flops_6nd"])
        name = _convert_to_texts(given.get("name", [f"row {i}" for i in range(1, rows + 1)]), rows)
        unsaid = {"name": name, "trial": name, "recipe": "", "state": "end", "unit": NATS}
        texts = {n: _convert_to_texts(given.get(n, unsaid.get(n, "")), rows) for n in TEXTS}
        named = {"losses": losses or {}, **(tasks or {})}
        maps = {
            n: {k: _convert_to_numbers(v, rows) for k, v in named.get(n, {}).items()} for n in MAPS
        }
        columns: dict[str, Any] = {**texts, **numbers, **maps}
        return cls(**columns, counts=counts)

    def write(self, path: str) -> None:
        """Write the table to `path` (…/runs.parquet). The same rows give the same bytes."""
        with storage.atomic_file(path) as temporary:
            pq.write_table(self.convert_to_arrow(), temporary, compression="zstd")

    def convert_to_arrow(self) -> pa.Table:
        """Convert the table to Arrow with RUNS_SCHEMA.

        Unknown values become null, but an unknown loss stays NaN.
        """
        arrays: dict[str, Any] = {name: pa.array(getattr(self, name).tolist()) for name in TEXTS}
        for name in NUMBERS:
            column = getattr(self, name)
            arrays[name] = pa.array(column, mask=None if name == "loss" else np.isnan(column))
        for name in MAPS:
            values = getattr(self, name)
            arrays[name] = [
                # A source that a row lacks is NaN, a task that it lacks is left out.
                [(k, v[row]) for k, v in values.items() if name == "losses" or not np.isnan(v[row])]
                for row in range(len(self))
            ]
        schema = RUNS_SCHEMA.with_metadata({_COUNTS_KEY: self.counts.encode()})
        return pa.table({name: arrays[name] for name in RUNS_SCHEMA.names}, schema=schema)

    def select(self, rows: NDArray[Any]) -> "RunsTable":
        """Return the rows selected by a mask, or by an array of indices in its order."""
        columns = {name: getattr(self, name)[rows] for name in (*TEXTS, *NUMBERS)}
        columns |= {name: {k: v[rows] for k, v in getattr(self, name).items()} for name in MAPS}
        return replace(self, **columns)

    def count_embeddings(self) -> "RunsTable":
        """Return the same runs with N as the total number of parameters, also in 6ND.

        Raises DataError if the number of embedding parameters is unknown for any run.
        """
        if self.counts == "total":
            return self
        if unknown := int(np.isnan(self.embedding_parameters).sum()):
            raise DataError(
                f"{unknown} of {len(self)} runs do not say how many parameters their embeddings "
                "have, so the total is unknown; fit with --counts non-embedding"
            )
        total = self.parameters + self.embedding_parameters
        six = 6 * total * self.tokens
        return replace(self, parameters=total, flops_6nd=six, counts="total")


def count_unique_tokens(runs: RunsTable) -> Floats:
    """Return the number [R] of different tokens in each run: all its tokens where unknown."""
    return _fill_unknown(runs.unique_tokens, runs.tokens)


def join_tables(tables: Sequence[RunsTable]) -> RunsTable:
    """Concatenate tables. Sources and tasks that a table lacks are NaN in its rows.

    Raises DataError if the tables count parameters differently.
    """
    kinds = {table.counts for table in tables}
    if len(kinds) > 1:
        raise DataError(f"one table counts parameters as {', the other as '.join(sorted(kinds))}")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(t, name) for t in tables]) for name in (*TEXTS, *NUMBERS)
    }
    joined |= {name: _join_maps(tables, name) for name in MAPS}
    return RunsTable(**joined, counts=tables[0].counts)


def _join_maps(tables: Sequence[RunsTable], name: str) -> dict[str, Floats]:
    keys = dict.fromkeys(key for table in tables for key in getattr(table, name))
    return {
        key: np.concatenate([getattr(t, name).get(key, np.full(len(t), np.nan)) for t in tables])
        for key in keys
    }


def read_parquet(path: str) -> RunsTable:
    """Read the table at `path`. Raises DataError if it is missing, or not a table of runs."""
    try:
        with storage.open_for_arrow(path) as file:
            table = pq.read_table(file)
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(
            f"{path}: no such table of runs{describe_origin(path)}; a sweep writes it when it "
            "finishes"
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not Parquet: {str(error).splitlines()[0]}") from None
    if missing := [name for name in NEEDED if name not in table.column_names]:
        raise DataError(f"{path}: no column {', '.join(missing)}; a table of runs needs it")
    given = {name: table[name].to_pylist() for name in table.column_names}
    known: dict[str, Any] = {name: given[name] for name in (*TEXTS, *NUMBERS) if name in given}
    maps: dict[str, Any] = {name: _split_by_key(given.get(name, [])) for name in MAPS}
    counts = (table.schema.metadata or {}).get(_COUNTS_KEY, b"non-embedding").decode()
    if counts not in get_args(Counts):
        raise DataError(
            f"{path}: counts parameters as {counts!r}, which must be non-embedding or total"
        )
    try:
        losses = maps.pop("losses")
        return RunsTable.of(**known, losses=losses, tasks=maps, counts=cast(Counts, counts))
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: a column of the wrong type: {error}") from None


def _split_by_key(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Convert a column of maps into one column for each key."""
    maps = [dict(row or ()) for row in rows]
    return {
        key: [row.get(key) for row in maps] for key in dict.fromkeys(k for m in maps for k in m)
    }


def _convert_to_numbers(values: Any, rows: int) -> Floats:
    """Convert values to float64 [rows], with None as NaN; one value is repeated."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (rows,)).copy()


def _convert_to_texts(values: Any, rows: int) -> Texts:
    filled = values if isinstance(values, str) else ["" if v is None else v for v in values]
    return np.broadcast_to(np.asarray(filled, dtype=np.str_), (rows,)).copy()


def _fill_unknown(values: Floats, otherwise: Floats) -> Floats:
    return np.where(np.isnan(values), otherwise, values)


assert {*TEXTS, *NUMBERS, *MAPS, "counts"} == {field.name for field in fields(RunsTable)}
