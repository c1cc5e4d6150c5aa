"""What lies in a run's output already, told before its inputs are read.

`manifest.claim` has the last word: it also compares the contents of the inputs.
"""

from collections.abc import Mapping
from typing import Any

from trainrig import manifest, storage
from trainrig.config import RunFile, extract_identity
from trainrig.errors import OutputTaken
from trainrig.manifest import MANIFEST, Manifest


def check_output(run: RunFile, folder: str) -> Manifest | None:
    """The manifest of `folder` if nothing is left to do for `run`, whose output it is.

    Raises OutputTaken if another run, or anything else, is there; DataError for torn records.
    """
    if storage.exists(folder):
        raise OutputTaken(f"{folder}: is a file; choose another `output`")
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
            f"{folder}: made by another run ({different}); choose another `output`, or delete that "
            "folder"
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
    """`there` without what `lasting` leaves out of `whole`: the fields marked EXTENDABLE."""
    if all(isinstance(each, Mapping) for each in (there, whole, lasting)):
        return {
            key: _drop_extendable(value, whole.get(key), lasting.get(key))
            for key, value in there.items()
            if key not in whole or key in lasting
        }
    if all(isinstance(each, list) for each in (there, whole, lasting)):
        known = [_drop_extendable(*each) for each in zip(there, whole, lasting, strict=False)]
        return [*known, *there[len(known) :]]
    return there
