"""The claim and the manifest of a stage's folder, their differences, and checks of the files.

These are the two records that a stage writes to its folder. Differences between two claims, or two
tables of plain JSON, are described in words. The files are checked against the sizes and SHA-256
sums in the manifest.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.errors import DataError
from trainrig.storage.missing_folders import describe_origin, is_missing

FORMAT = 1
MANIFEST = "manifest.json"
CLAIM = "stage.json"

Record = TypeVar("Record", bound="_Record")


def _check_below(name: str) -> str:
    absolute = name.startswith(("/", "\\")) or "://" in name
    if absolute or not name or "\0" in name or ".." in re.split(r"[/\\]", name):
        raise ValueError(f"'{name}' is not the name of a file below the folder")
    return name


Below = Annotated[str, AfterValidator(_check_below)]
"""A file's path below the folder that names it. What names one elsewhere is refused: a
folder that others made could have files elsewhere read, moved or deleted."""


class _Record(BaseModel):
    """Base of the records, which ignores unknown keys: a later version may write more keys."""

    # JSON has no infinity, and a value written as null could not be read back.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class _Versioned(_Record):
    """The format number, which every version keeps, so that a newer format is recognised."""

    format: int


class FileSum(_Record):
    """Size in bytes and SHA-256 of one output file."""

    bytes: int
    sha256: str


class Claim(_Versioned):
    """Record of the stage, settings and inputs that a folder is claimed for."""

    format: int = FORMAT
    stage: str
    fingerprint: str
    config: dict[str, Any]
    inputs: dict[str, str]  # fingerprint of the contents by role
    environment: dict[str, str]  # versions and machine; recorded, not part of the fingerprint
    output_format: int = 1  # RunFile.output_format of the version that made it


class Manifest(Claim):
    """Record of a finished folder: its claim, its files and the stage's summary `counts`."""

    counts: dict[str, Any]
    seconds: float  # duration in the process that finished the stage
    files: dict[Below, FileSum]
    cost: dict[str, float] = {}  # other costs, which differ between equal runs

    @property
    def content(self) -> str:
        """Fingerprint of the folder as an input of the next stage: a hash of all file hashes."""
        return digest({path: entry.sha256 for path, entry in self.files.items()})

    def to_figures(self, folder: str) -> dict[str, Any]:
        """Return what a stage's `--json` prints: the folder, the counts and the cost."""
        cost = {"seconds": self.seconds, **self.cost}
        return {"output": folder, **self.counts, "cost": cost}


def read_claim(folder: str) -> Claim | None:
    """Read the claim of `folder`; return None if no stage has claimed the folder."""
    return _find_record(Claim, storage.join(folder, CLAIM))


def find_manifest(folder: str) -> Manifest | None:
    """Read the manifest of `folder`; return None if its stage is not finished."""
    return _find_record(Manifest, storage.join(folder, MANIFEST))


def read_manifest(folder: str) -> Manifest:
    """Read the manifest of `folder`. Raises DataError if its stage is not finished."""
    found = find_manifest(folder)
    if found is None:
        if is_missing(folder):
            raise DataError(
                f"{folder}: no such folder{describe_origin(folder)}; run the stage that writes it, "
                "or name another"
            )
        unfinished = storage.exists(storage.join(folder, CLAIM))
        raise DataError(
            f"{folder}: its stage is not finished; run it again to continue"
            if unfinished
            else (
                f"{folder}: no {MANIFEST}, so it is not the output of a stage; name the folder "
                "that a stage wrote"
            )
        )
    return found


def _find_record(model: type[Record], path: str) -> Record | None:
    try:
        data = storage.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = _Versioned.model_validate_json(data).format
        if found > FORMAT:
            raise DataError(
                f"{path}: has format {found}, but this trainrig reads up to {FORMAT}; "
                "upgrade trainrig"
            )
        return model.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        at = ".".join(str(part) for part in problem["loc"])
        raise DataError(
            f"{path}: damaged, or not written by trainrig: "
            f"{f'`{at}`: ' if at else ''}{problem['msg']}"
        ) from None


def digest(value: Any) -> str:
    """Compute the SHA-256 of `value` as canonical JSON, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe_difference(there: Claim, here: Claim) -> str:
    """Describe the first differences between two claims."""
    if there.stage != here.stage:
        return f"by `{there.stage}`, not `{here.stage}`"
    inputs = [
        f"input `{role}` has other contents"
        for role in sorted({*there.inputs, *here.inputs})
        if there.inputs.get(role) != here.inputs.get(role)
    ]
    formats = (
        [f"output format {there.output_format} there, {here.output_format} here"]
        if there.output_format != here.output_format
        else []
    )
    return _join_few([*formats, *_list_differences(there.config, here.config), *inputs])


def describe_table_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe the first differences between two tables of plain JSON; empty if they are equal."""
    return _join_few(_list_differences(there, here))


def _list_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    old = _flatten(there)
    new = _flatten(here)
    return [
        f"{key}: {_format_value(old, key)} there, {_format_value(new, key)} here"
        for key in sorted({*old, *new})
        if _format_value(old, key) != _format_value(new, key)
    ]


def _join_few(differences: list[str]) -> str:
    return "; ".join(differences[:3]) + ("; …" if len(differences) > 3 else "")


def _format_value(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _flatten(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        pairs = [(f"{key}.{name}" if key else name, inner) for name, inner in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        pairs = []
    if not pairs:  # a value, or an empty table or array
        return {key: value}
    return {path: leaf for name, inner in pairs for path, leaf in _flatten(inner, name).items()}


def read_input(folder: str, stage: str) -> Manifest:
    """Read the manifest of `folder` and check the sizes of its files.

    Raises DataError if another stage than `stage` wrote the folder, or if a file is missing or has
    another size.
    """
    manifest = read_manifest(folder)
    if manifest.stage != stage:
        raise DataError(
            f"{folder}: is the output of `{manifest.stage}`, not of `{stage}`; name an output "
            f"of `{stage}`"
        )
    check_files(folder, manifest)
    return manifest


def check_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file that `manifest` lists is missing or has another size."""
    sizes = storage.measure_sizes(storage.join(folder, name) for name in manifest.files)
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if path not in sizes:
            raise DataError(
                f"{path}: missing, though {MANIFEST} lists it; delete {folder} and run its "
                "stage again"
            )
        if (found := sizes[path]) != entry.bytes:
            raise DataError(
                f"{path}: {found} bytes, but {MANIFEST} says {entry.bytes}; delete {folder} and "
                "run its stage again"
            )


def verify_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file differs from its SHA-256 in `manifest`; all files are read."""
    check_files(folder, manifest)
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if storage.compute_sha256(path) != entry.sha256:
            raise DataError(
                f"{path}: damaged: its SHA-256 differs from the one in {MANIFEST}; delete "
                f"{folder} and run its stage again"
            )


def read_file(folder: str, name: str) -> bytes:
    """Read the file `name` in `folder` and check its bytes against the folder's manifest.

    In a folder without a manifest, the bytes are not checked. Raises DataError if the file does not
    exist or has another SHA-256 than the manifest lists.
    """
    path = storage.join(folder, name)
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; run the stage that makes {folder}") from None
    if manifest := find_manifest(folder):
        check_sum(path, hashlib.sha256(data).hexdigest(), manifest.files.get(name))
    return data


def check_sum(path: str, found: str, expected: FileSum | None) -> None:
    """Raise DataError if `found`, the SHA-256 of the file at `path`, differs from `expected`.

    Nothing is checked if `expected` is None.
    """
    if expected is not None and found != expected.sha256:
        raise DataError(
            f"{path}: damaged: its SHA-256 differs from the one in {MANIFEST}; restore the "
            "file, or run its stage again"
        )


def compute_file_sum(path: str) -> FileSum:
    """Compute the size and SHA-256 of the file at `path`."""
    return FileSum(bytes=storage.measure_size(path), sha256=storage.compute_sha256(path))
