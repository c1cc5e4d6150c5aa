"""Files that a submission uploads: the package trainrig, and files next to the run's record.

The package of this process and its extras are uploaded, and nothing else. They are read from where
they were imported, for an editable install and a wheel alike. Equal files give equal bytes, and the
name of the upload is their hash, so an upload that the cluster already has is not sent again.

The run file's SHIPPED files are copied next to the run's record, from where every machine reads
them.
"""

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import trainrig
from trainrig import storage
from trainrig.config import Settings, list_fields
from trainrig.config.field_marks import SHIPPED
from trainrig.errors import ConfigError
from trainrig.extras import EXTRAS
from trainrig.manifest import LIBRARIES

# bytes that a Ray head accepts in one request; the lowest limit among its versions
LIMIT = 100 * 2**20
LARGEST = 10  # files to name in the error when the package is too large
# Extras whose packages a run uses on the cluster: for storage, filters, metrics and searches.
RUN_EXTRAS = {"azure", "gcs", "datatrove", "mlflow", "optuna", "wandb"}
# names that begin with a dot are left out as well
LEFT_OUT = {"__pycache__", "tests", "node_modules"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the date of every file in the archive: the oldest that zip supports


@dataclass(frozen=True)
class Package:
    """An upload, ready to be sent."""

    name: str
    data: bytes
    files: int


def find_files_to_pack(folder: Path) -> dict[str, Path]:
    """Return the files of the package in `folder`, keyed by their names in the upload.

    The package of extras lies beside the core and is uploaded with it, if it is there. Raises
    ConfigError if they are larger than LIMIT together, naming the largest.
    """
    found = {
        path.relative_to(folder.parent).as_posix(): path
        for package in (folder, folder.parent / EXTRAS)
        for path in sorted(package.rglob("*"))
        if path.is_file() and _belongs(path.relative_to(package))
    }
    sizes = {name: path.stat().st_size for name, path in found.items()}
    if (total := sum(sizes.values())) > LIMIT:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
        named = ", ".join(f"{name} ({sizes[name] / 2**20:,.1f} MiB)" for name in largest)
        raise ConfigError(
            f"{folder}: {total / 2**20:,.1f} MiB to upload, but at most "
            f"{LIMIT // 2**20} MiB are allowed; move files that are not code out of it, "
            f"or into the container image; the largest: {named}"
        )
    return found


def _belongs(path: Path) -> bool:
    hidden = any(part.startswith(".") or part in LEFT_OUT for part in path.parts)
    return not hidden and path.suffix != ".pyc"


def pack(folder: Path | None = None) -> Package:
    """Pack the package in `folder`; None: trainrig. Raises ConfigError if it is too large."""
    files = find_files_to_pack(folder or Path(trainrig.__file__).parent)
    buffer = io.BytesIO()
    digest = hashlib.sha256()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, path in files.items():
            content = path.read_bytes()
            digest.update(f"{name}\n{len(content)}\n".encode() + content)
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return Package(f"_ray_pkg_{digest.hexdigest()[:32]}.zip", buffer.getvalue(), len(files))


def pin_versions() -> list[str]:
    """Return pip requirements for the versions of this process's libraries, without Ray.

    Packages of the extras that a run can use are among them if they are installed here. Ray's
    version is the cluster's. A local version label such as `+cpu` is removed: no index has it, and
    the cluster's machines differ from this one.
    """
    wanted = {name: name for name in LIBRARIES}
    try:
        requirements = metadata.requires("trainrig") or []
    # trainrig was imported from a folder, without being installed
    except metadata.PackageNotFoundError:
        requirements = []
    for requirement in requirements:
        name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)", requirement)
        if extra is None or extra[1] in RUN_EXTRAS:
            wanted.setdefault(name, name)
    found = {}
    for name in wanted:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name != "ray"]


Run = TypeVar("Run", bound=Settings)


def with_shipped_files(run: Run, folder: str) -> tuple[Run, dict[str, bytes]]:
    """Return `run` with its SHIPPED files moved to `folder`, and their contents by new path.

    The new path contains a hash of the content, so a changed file gets another path.
    """
    files: dict[str, bytes] = {}
    return _with_shipped(run, folder, files), files


def _with_shipped(settings: Run, folder: str, files: dict[str, bytes]) -> Run:
    changed: dict[str, Any] = {}
    for name, value in list_fields(settings):
        if SHIPPED in type(settings).model_fields[name].metadata and isinstance(value, str):
            data = storage.read(value)
            short = hashlib.sha256(data).hexdigest()[:16]
            there = storage.join(folder, short, value.rpartition("/")[2])
            files[there] = data
            changed[name] = there
        else:
            new = _map_paths(value, folder, files)
            if new != value:
                changed[name] = new
    return settings.model_copy(update=changed) if changed else settings


def _map_paths(value: Any, folder: str, files: dict[str, bytes]) -> Any:
    if isinstance(value, Settings):
        return _with_shipped(value, folder, files)
    if isinstance(value, tuple):
        return tuple(_map_paths(item, folder, files) for item in value)
    if isinstance(value, Mapping):
        return {key: _map_paths(item, folder, files) for key, item in value.items()}
    return value
