"""The claim and the manifest, the two records that a stage writes to its folder."""

import hashlib
import json
import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.errors import DataError

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


def read_claim(folder: str) -> Claim | None:
    """Read the claim of `folder`; return None if no stage has claimed the folder."""
    path = storage.join(folder, CLAIM)
    return _read_record(Claim, path) if storage.exists(path) else None


def read_manifest(folder: str) -> Manifest:
    """Read the manifest of `folder`. Raises DataError if its stage is not finished."""
    path = storage.join(folder, MANIFEST)
    if not storage.exists(path):
        unfinished = storage.exists(storage.join(folder, CLAIM))
        raise DataError(
            f"{folder}: its stage is not finished; run it again to continue"
            if unfinished
            else (
                f"{folder}: no {MANIFEST}, so it is not the output of a stage; name the folder "
                "that a stage wrote"
            )
        )
    return _read_record(Manifest, path)


def _read_record(model: type[Record], path: str) -> Record:
    data = storage.read(path)
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
