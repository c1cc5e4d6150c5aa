"""A finished output that takes new files in place of its own, killed at any moment or not.

All new files are whole before the first old one goes; from then on a note in the output says what
is to be done, and whoever comes next does the rest before anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import MANIFEST, SCRATCH, Below, Manifest


class _Note(BaseModel):
    """What is under way."""

    model_config = ConfigDict(frozen=True)

    new: Below  # the folder of the new files, below the output
    old: list[Below]  # files of the old manifest that the new one does not have
    unlisted: list[Below]  # files that no manifest lists: the report
    manifest: Manifest


@dataclass(frozen=True)
class Replacement:
    """The replacing of what is in `output`."""

    output: str

    @property
    def _note(self) -> str:
        return storage.join(self.output, SCRATCH, "replacement.json")

    def begin(self, manifest: Manifest, new: str, unlisted: Sequence[str] = ()) -> None:
        """Put the files of `manifest` and those `unlisted`, all in the folder `new`, in place."""
        there = Manifest.model_validate_json(storage.read(storage.join(self.output, MANIFEST)))
        note = _Note(
            new=new.removeprefix(f"{self.output}/"),
            old=sorted(set(there.files) - set(manifest.files)),
            unlisted=list(unlisted),
            manifest=manifest,
        )
        storage.write(self._note, note.model_dump_json().encode())
        self.go_on()

    def go_on(self) -> None:
        """Do what a note in the output says is left to do; nothing if there is none.

        Raises DataError if the note is not as we write it.
        """
        if not storage.exists(self._note):
            return
        try:
            note = _Note.model_validate_json(storage.read(self._note))
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"{self._note}: torn or not ours: {what}") from None
        storage.delete(storage.join(self.output, MANIFEST))  # what is half new is not finished
        for name in (*note.manifest.files, *note.unlisted):
            fresh = storage.join(self.output, note.new, name)
            if storage.exists(fresh):
                storage.move(fresh, storage.join(self.output, name))
        for name in note.old:
            storage.delete(storage.join(self.output, name))
        data = note.manifest.model_dump_json(indent=1).encode()
        storage.write(storage.join(self.output, MANIFEST), data)
        storage.delete_folder(storage.join(self.output, SCRATCH))
