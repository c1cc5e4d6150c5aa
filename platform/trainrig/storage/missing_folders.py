"""Messages about missing files and folders: where trainrig looked, and what may be meant."""

import re
from pathlib import Path

from trainrig import storage

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_missing(path: str) -> bool:
    """Return whether `path` is neither a file nor a folder; a bucket's folder needs an object."""
    if not storage.is_remote(path):
        return not Path(storage.resolve(path)).exists()
    return not (storage.exists(path) or storage.find_first(path) or storage.list_folders(path))


def describe_origin(path: str) -> str:
    """Return ` (looked in FOLDER)`, the working directory, if `path` is relative, else nothing."""
    return "" if storage.is_absolute(path) else f" (looked in {Path.cwd()})"


def describe_missing_model(path: str, wanted: str = "the folder of a training run") -> str:
    """Return the message that `path`, which should be `wanted`, does not exist, and what to do.

    A path of two names, the first of which is no folder either, may be the name of a model on the
    Hugging Face Hub. The message then says how to download and import the model.
    """
    message = f"{path}: no such folder{describe_origin(path)}"
    if _HUB_NAME.fullmatch(path) and is_missing(path.partition("/")[0]):
        name = path.rpartition("/")[2]
        return (
            f"{message}; for a model of the Hugging Face Hub, run `hf download {path} "
            f"--local-dir {name}` and `trainrig import {name} runs/{name}`, and name runs/{name}"
        )
    return f"{message}; name {wanted}"
