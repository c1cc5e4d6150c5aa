"""Which files of documents a run file names, and what they are called in what is made of them."""

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
    """The files that `patterns` name, each once, sorted. Raises DataError if one names none."""
    found = {path for pattern in patterns for path in _find_matching(FORMATS[kind], pattern)}
    # "./a" and "a" are one file, and so is "/folder/a" in that folder.
    places = {_locate_file(path): path for path in sorted(found)}
    return [
        path if path.startswith(storage.S3) else str(Path(path))
        for _, path in sorted(places.items())
    ]


def name_files(paths: Sequence[str]) -> list[str]:
    """What each file is known by: its path below the folder that all of them lie in.

    Of files on disk and on S3 no folder holds all, so each kind has one of its own, and names begin
    with `disk/` or `s3/`: no two files have the same.
    """
    places = [_locate_file(path) for path in paths]
    kinds = sorted({kind for kind, _ in places})
    folders = {
        kind: os.path.commonpath(
            [path.rpartition("/")[0] or "/" for of, path in places if of == kind]
        )
        for kind in kinds
    }
    names = [path.removeprefix(folders[kind]).removeprefix("/") for kind, path in places]
    if len(kinds) == 1:
        return names
    return [f"{kind}/{name}" for (kind, _), name in zip(places, names, strict=True)]


def _locate_file(path: str) -> tuple[Literal["disk", "s3"], str]:
    """Where a file lies, however it is written: the kind of location, and the path from its root.

    By letters alone: a link is a folder like any other, under the name that it has.
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
        raise DataError(f"{pattern}: matches none of the {len(names)} files below {folder}")
    return found


def _list_folder(format_: Format, folder: str, names: Sequence[str]) -> list[str]:
    endings = " ".join(f"*{ending}" for ending in format_.endings)
    found = [name for name in names if name.endswith(format_.endings)]
    # What `datasets` keeps of past computations beside the data.
    found = [name for name in found if not re.search(r"/(cache|tmp)-[^/]*\.arrow$", name)]
    if not found:
        there = f"a folder of {len(names)} files, none of them {endings}" if names else "not there"
        raise DataError(f"{folder}: {there}; `paths` names files or folders, * is wild")
    splits = sorted(
        {split for name in found for split in _parse_hub_split(name.removeprefix(folder))}
    )
    if len(splits) > 1:
        raise DataError(
            f"{folder}: holds the splits {', '.join(splits)}, of which some are for testing; name "
            f"the files of one"
        )
    return found


def _parse_hub_split(name: str) -> list[str]:
    """The split (train, test, …) that a file belongs to by the Hub's ways of naming files."""
    parts = name.lstrip("/").split("/")
    if len(parts) > 1 and re.fullmatch(r"data-\d+-of-\d+\.arrow", parts[-1]):
        return [parts[-2]]
    found = re.fullmatch(r"(\w+?)-\d+-of-\d+(-\w+)?\.\w+", parts[-1])
    return [found[1]] if found and found[1] != "data" else []
