"""Search for the document files that a run file names, and short names for them in the output."""

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.documents.formats import FORMATS, Format


def find_paths(kind: str, patterns: Sequence[str]) -> list[str]:
    """Return the files that `patterns` match, sorted, without duplicates.

    Raises DataError if a pattern matches no file.
    """
    found = {path for pattern in patterns for path in _find_matching(FORMATS[kind], pattern)}
    # "./a", "a" and "/folder/a" may be the same file.
    places = {_locate_file(path): path for path in sorted(found)}
    return [
        path if path.startswith(storage.S3) else str(Path(path))
        for _, path in sorted(places.items())
    ]


def name_files(paths: Sequence[str]) -> list[str]:
    """Return a short unique name for each file: its path below the folder that contains them all.

    Files on disk and files on S3 have no folder in common. If there are both, the paths are
    relative to one folder of each kind, and names begin with `disk/` or `s3/`.
    """
    places = [_locate_file(path) for path in paths]
    kinds = sorted({kind for kind, _ in places})
    folders = {
        kind: os.path.commonpath(
            [path.rpartition("/")[0] or "/" for location, path in places if location == kind]
        )
        for kind in kinds
    }
    names = [path.removeprefix(folders[kind]).removeprefix("/") for kind, path in places]
    if len(kinds) == 1:
        return names
    return [f"{kind}/{name}" for (kind, _), name in zip(places, names, strict=True)]


def _locate_file(path: str) -> tuple[Literal["disk", "s3"], str]:
    """Return the kind of storage of a file, and its normalised absolute path there.

    Symbolic links are not resolved: a linked folder counts as a folder of its own.
    """
    if path.startswith(storage.S3):
        return "s3", "/" + path.removeprefix(storage.S3)
    return "disk", os.path.normpath(Path(path).absolute())


def _find_matching(format_: Format, pattern: str) -> list[str]:
    if storage.exists(pattern):
        return [pattern]
    wild = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=None)
    folder = pattern if wild is None else pattern[:wild].rpartition("/")[0] or "."
    names = storage.list_files(folder)
    if wild is None:
        return _list_folder(format_, folder, names)
    wanted = pattern if "/" in pattern else f"./{pattern}"
    found = [name for name in names if fnmatch.fnmatchcase(name, wanted)]
    if not found:
        raise DataError(f"{pattern}: matches none of the {len(names)} files in {folder}")
    return found


def _list_folder(format_: Format, folder: str, names: Sequence[str]) -> list[str]:
    endings = " ".join(f"*{ending}" for ending in format_.endings)
    found = [name for name in names if name.endswith(format_.endings)]
    # Leave out the results of past computations that `datasets` caches beside the data.
    found = [name for name in found if not re.search(r"/(cache|tmp)-[^/]*\.arrow$", name)]
    if not found:
        problem = (
            f"none of its {len(names)} files is named {endings}" if names else "does not exist"
        )
        raise DataError(f"{folder}: {problem}; set `paths` to files, folders or patterns with *")
    splits = sorted(
        {split for name in found for split in _parse_hub_split(name.removeprefix(folder))}
    )
    if len(splits) > 1:
        raise DataError(
            f"{folder}: contains the splits {', '.join(splits)}, some of which are for testing; "
            f"set `paths` to the files of one split"
        )
    return found


def _parse_hub_split(name: str) -> list[str]:
    """Return the split (train, test, …) in a file's name, by the Hugging Face Hub's conventions."""
    parts = name.lstrip("/").split("/")
    if len(parts) > 1 and re.fullmatch(r"data-\d+-of-\d+\.arrow", parts[-1]):
        return [parts[-2]]
    found = re.fullmatch(r"(\w+?)-\d+-of-\d+(-\w+)?\.\w+", parts[-1])
    return [found[1]] if found and found[1] != "data" else []
