"""Check of a run's output folder before its inputs are read.

`manifest.claim` decides later: it also compares the contents of the inputs.
"""

from collections.abc import Mapping
from typing import Any

from trainrig import manifest, storage
from trainrig.config import RunFile, extract_identity
from trainrig.errors import OutputTaken
from trainrig.manifest import MANIFEST, Manifest


def check_output(run: RunFile, folder: str) -> Manifest | None:
    """Return the manifest in `folder` if `run` has finished there; None if there is work left.

    Raises OutputTaken if the folder holds another run or other files, DataError for damaged
    records.
    """
    if storage.exists(folder):
        raise OutputTaken(f"{folder}: this is a file; choose another `output`")
    found = manifest.read_claim(folder)
    if found is None:
        _check_empty(folder)
        return None
    if done := storage.exists(storage.join(folder, MANIFEST)):
        found = manifest.read_manifest(folder)
    here = extract_identity(run)
    lasting = extract_identity(run, extendable=False)
    whole = done and not run.extends_finished
    there = found.config if whole else _drop_extendable(found.config, here, lasting)
    different = manifest.describe_table_difference(
        {"stage": found.stage, **there}, {"stage": run.verb, **(here if whole else lasting)}
    )
    if different:
        raise OutputTaken(
            f"{folder}: made by another run ({different}); choose another `output`, or "
            "delete that folder"
        )
    same = not manifest.describe_table_difference(found.config, here)
    return found if isinstance(found, Manifest) and same else None


def _check_empty(folder: str) -> None:
    if files := storage.list_files(folder):
        raise OutputTaken(
            f"{folder}: holds files that no stage made ({files[0].rpartition('/')[2]}, …); choose "
            "another `output`"
        )


def _drop_extendable(there: Any, whole: Any, lasting: Any) -> Any:
    """Return `there` without the fields marked EXTENDABLE: those in `whole`, but not `lasting`."""
    if all(isinstance(table, Mapping) for table in (there, whole, lasting)):
        return {
            key: _drop_extendable(value, whole.get(key), lasting.get(key))
            for key, value in there.items()
            if key not in whole or key in lasting
        }
    if all(isinstance(part, list) for part in (there, whole, lasting)):
        known = [_drop_extendable(*parts) for parts in zip(there, whole, lasting, strict=False)]
        return [*known, *there[len(known) :]]
    return there
