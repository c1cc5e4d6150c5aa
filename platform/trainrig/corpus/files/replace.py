"""Replacement of all files of a finished output folder, safe against a kill at any moment.

All new files are complete before the first old file is deleted. A note in the output folder lists
the files to move and to delete. If a process is killed meanwhile, the next one that opens the
output finishes the replacement first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import MANIFEST, SCRATCH, Below, Manifest


class _Note(BaseModel):
    """List of the moves and deletions of a replacement in progress."""

    model_config = ConfigDict(frozen=True)

    new: Below  # folder of the new files, relative to the output
    old: list[Below]  # files to delete: in the old manifest and not in the new one
    unlisted: list[Below]  # new files that no manifest lists, such as the report
    manifest: Manifest  # manifest of the new files


@dataclass(frozen=True)
class Replacement:
    """Replacement of the files in the folder `output`."""

    output: str

    @property
    def _note_path(self) -> str:
        return storage.join(self.output, SCRATCH, "replacement.json")

    def begin(self, manifest: Manifest, new: str, unlisted: Sequence[str] = ()) -> None:
        """Move all new files from folder `new` into the output, and delete the old ones.

        The new files are those of `manifest` and the `unlisted` ones.
        """
        old = Manifest.model_validate_json(storage.read(storage.join(self.output, MANIFEST)))
        note = _Note(
            new=new.removeprefix(f"{self.output}/"),
            old=sorted(set(old.files) - set(manifest.files)),
            unlisted=list(unlisted),
            manifest=manifest,
        )
        storage.write(self._note_path, note.model_dump_json().encode())
        self.go_on()

    def go_on(self) -> None:
        """Finish the replacement that a note in the output describes; do nothing without a note.

        Raises DataError if the note is not valid.
        """
        if not storage.exists(self._note_path):
            return
        try:
            note = _Note.model_validate_json(storage.read(self._note_path))
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(
                f"{self._note_path}: truncated, or not written by trainrig: {what}"
            ) from None
        # a half-replaced output must not look finished
        storage.delete(storage.join(self.output, MANIFEST))
        for name in (*note.manifest.files, *note.unlisted):
            fresh = storage.join(self.output, note.new, name)
            if storage.exists(fresh):
                storage.move(fresh, storage.join(self.output, name))
        for name in note.old:
            storage.delete(storage.join(self.output, name))
        data = note.manifest.model_dump_json(indent=1).encode()
        storage.write(storage.join(self.output, MANIFEST), data)
        storage.delete_folder(storage.join(self.output, SCRATCH))
