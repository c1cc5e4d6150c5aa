"""Record of the checkpoints that a model without a run was made from.

A run records its inputs in its claim. An averaged, exported or imported model has no run, so the
command that writes it records its parents in a file of this name next to the weights:

    averaged/trainrig_parents.json    run folder of `trainrig average` or `trainrig import`
    exported/trainrig_parents.json    Hugging Face or PEFT folder of `trainrig export`

The record of an exported folder also has the SHA-256 of its weights. An import takes the record
over only if the weights still have it, because other software may have trained them further.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainrig import __version__, storage
from trainrig.errors import DataError, TrainrigError
from trainrig.train.checkpoint.checkpoint_metadata import compute_content_key

PARENTS = "trainrig_parents.json"
FORMAT: Literal[1] = 1
WEIGHTS = ".safetensors"
MOST_BYTES = 2**22  # A record with one parent takes about 300 bytes.


class ParentModel(BaseModel):
    """A checkpoint that a model was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str  # such as `checkpoint`, `base` or `step 400`
    content: str  # fingerprint of the checkpoint's files
    # Folder of the checkpoint when the model was made; in the file of an export on the same disk,
    # relative to the exported folder.
    path: str


class ModelParents(BaseModel):
    """The command that made a model, and the checkpoints that it read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = FORMAT
    verb: Literal["average", "export", "import"]
    trainrig: str  # version that made the model
    parents: Annotated[tuple[ParentModel, ...], Field(min_length=1)]
    weights: dict[str, str] = {}  # SHA-256 of each file of weights; only in exported folders


def record_parents(
    folder: str,
    verb: Literal["average", "export", "import"],
    parents: Mapping[str, str],
    taken: tuple[ParentModel, ...] = (),
) -> None:
    """Record in `folder` that `verb` made its model from `parents`, checkpoints by role.

    `taken` are parents that an exported folder had recorded. An export has to be whole when this is
    called. Nothing is written if there are no parents, or if `folder` records the same ones.
    """
    # What is published names no folders of this machine, and equal exports are equal byte for byte.
    name = _make_relative if verb == "export" else _make_absolute
    found = tuple(
        ParentModel(role=role, content=compute_content_key(path), path=name(path, folder))
        for role, path in parents.items()
    )
    if not found + taken:
        return
    record = ModelParents(
        verb=verb,
        trainrig=__version__,
        parents=found + taken,
        weights=_sum_weights(folder) if verb == "export" else {},
    )
    if not _is_recorded(record, folder):
        data = record.model_dump_json(indent=1).encode() + b"\n"
        storage.write(storage.join(folder, PARENTS), data)


def _make_absolute(path: str, _folder: str) -> str:
    return storage.make_absolute(path)


def _make_relative(path: str, folder: str) -> str:
    """Return `path` relative to `folder`; an absolute path unless both are on this machine."""
    if storage.is_remote(path) or storage.is_remote(folder):
        return storage.make_absolute(path)
    return os.path.relpath(storage.resolve(path), storage.resolve(folder))


def _is_relative(path: str) -> bool:
    """Return whether `path` is relative to a folder; the record may name any scheme."""
    return not path.startswith("/") and "://" not in path


def _is_recorded(record: ModelParents, folder: str) -> bool:
    """Return whether `folder` records the same model, from parents of the same content."""
    try:
        known = read_parents(folder)
    except DataError:  # replaced
        return False
    return known is not None and _identify(known) == _identify(record)


def _identify(record: ModelParents) -> tuple[object, ...]:
    parents = [(parent.role, parent.content) for parent in record.parents]
    return record.verb, parents, record.weights


def _sum_weights(folder: str) -> dict[str, str]:
    start = storage.resolve(folder).rstrip("/") + "/"
    paths = storage.list_files(folder, WEIGHTS)
    return {path.removeprefix(start): storage.compute_sha256(path) for path in paths}


def read_parents(folder: str) -> ModelParents | None:
    """Read the record of a model's parents; return None if `folder` has none.

    Paths relative to a `folder` on this machine are returned as absolute ones.

    Raises DataError if the file is damaged, or of a version that this one cannot read.
    """
    path = storage.join(folder, PARENTS)
    try:
        size = storage.measure_size(path)
    except FileNotFoundError:
        return None
    if size > MOST_BYTES:
        raise DataError(
            f"{path}: has {size:,} bytes, more than the {MOST_BYTES:,} of any record of parents; "
            "restore the file, or delete it to continue without the model's parents"
        )
    try:
        record = ModelParents.model_validate_json(storage.read(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path}: {where}: {first['msg']}; restore the file, or delete it to continue without "
            "the model's parents"
        ) from None
    if storage.is_remote(folder):
        return record
    start = storage.make_absolute(folder)
    parents = tuple(
        parent.model_copy(update={"path": os.path.normpath(storage.join(start, parent.path))})
        if _is_relative(parent.path)
        else parent
        for parent in record.parents
    )
    return record.model_copy(update={"parents": parents})


def find_checkpoint(parent: ParentModel, near: str) -> str | None:
    """Return the checkpoint of `parent`, or None if it is elsewhere or cannot be read.

    It is looked for at its recorded path, and beside the folder `near`, because runs may have been
    moved together. A checkpoint of other content does not count. The record may be of another
    machine or company, so a bucket that does not answer is no error.
    """
    run, part, rest = parent.path.rpartition("/checkpoints/")
    beside = storage.join(near.rstrip("/").rpartition("/")[0], run.rpartition("/")[2])
    for path in (parent.path, beside + part + rest):
        try:
            with storage.briefly():
                named = part and not _is_relative(path)
                if named and compute_content_key(path) == parent.content:
                    return path
        # ValueError: no file has such a path
        except (TrainrigError, OSError, ValueError):
            continue
    return None


def find_exported_parents(folder: str) -> tuple[ParentModel, ...]:
    """Return the parents of an exported model, or () if `folder` records none for its weights."""
    record = read_parents(folder)
    if record is None or record.verb != "export" or record.weights != _sum_weights(folder):
        return ()
    return record.parents
