"""Records that a stage leaves in its folder, the claim and the manifest, and how they are read."""

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
        raise ValueError(f"'{name}' is no name of a file below the folder")
    return name


Below = Annotated[str, AfterValidator(_check_below)]
"""A file's path below the folder that names it. What names one elsewhere is refused: a
folder that others made could have files elsewhere read, moved or deleted."""


class _Record(BaseModel):
    """Read back leniently: a later version may know more keys."""

    # JSON has no infinity; as null it would not come back.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class _Versioned(_Record):
    """What every format keeps, so that a newer one is known for what it is."""

    format: int


class FileSum(_Record):
    """One output file."""

    bytes: int
    sha256: str


class Claim(_Versioned):
    """What a folder is being made into."""

    format: int = FORMAT
    stage: str
    fingerprint: str
    config: dict[str, Any]
    inputs: dict[str, str]  # role -> fingerprint of the contents
    environment: dict[str, str]  # versions and machine; recorded, not part of the fingerprint
    output_format: int = 1  # RunFile.output_format of the version that made it


class Manifest(Claim):
    """What a folder holds. `counts` is the stage's own summary."""

    counts: dict[str, Any]
    seconds: float  # of the process that finished it
    files: dict[Below, FileSum]
    cost: dict[str, float] = {}  # what else it took, which differs from time to time

    @property
    def content(self) -> str:
        """Fingerprint of the folder as an input of the next stage: the sums of all its files."""
        return digest({path: entry.sha256 for path, entry in self.files.items()})


def read_claim(folder: str) -> Claim | None:
    """What `folder` is being made into; None: no stage has claimed it."""
    path = storage.join(folder, CLAIM)
    return _read_record(Claim, path) if storage.exists(path) else None


def read_manifest(folder: str) -> Manifest:
    """The manifest of a finished stage. Raises DataError if the folder is not one."""
    path = storage.join(folder, MANIFEST)
    if not storage.exists(path):
        unfinished = storage.exists(storage.join(folder, CLAIM))
        raise DataError(
            f"{folder}: its stage is not finished; run it again, it will go on"
            if unfinished
            else f"{folder}: no {MANIFEST}, so no stage made it; name the folder that a stage wrote"
        )
    return _read_record(Manifest, path)


def _read_record(model: type[Record], path: str) -> Record:
    data = storage.read(path)
    try:
        found = _Versioned.model_validate_json(data).format
        if found > FORMAT:
            raise DataError(
                f"{path}: format {found}, but this trainrig reads up to {FORMAT}; upgrade it"
            )
        return model.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        at = ".".join(str(part) for part in problem["loc"])
        raise DataError(
            f"{path}: torn or not ours: {f'`{at}`: ' if at else ''}{problem['msg']}"
        ) from None


def digest(value: Any) -> str:
    """SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
