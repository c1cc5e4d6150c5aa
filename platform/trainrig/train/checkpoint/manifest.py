"""What makes a folder a checkpoint: the manifest, created once and last, and which ones count."""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.errors import ClusterError, DataError
from trainrig.manifest import digest
from trainrig.train.checkpoint.chunks import (
    Chunk,
    DamagedCheckpoint,
    FileChunks,
    find_damaged_chunk,
)
from trainrig.train.checkpoint.index import IndexedTensor, plan_reads
from trainrig.train.run.run_folder import RunFolder

FORMAT: Literal[5] = 5
MANIFEST = "manifest.json"
STATE = "state.json"
TOKENIZER = "tokenizer.json"
BROUGHT = "brought.json"  # the files that its tokenizer came with, where it came from elsewhere
DAMAGED = "damaged.json"
KEPT = "kept.json"  # by whoever needs the checkpoint, whatever its own run keeps
SUFFIX = ".safetensors"
COMMIT = re.compile(r"(.*/step_(\d+))/attempt-(\d+)/manifest\.json")
# No other file is ever opened. `.metadata`, a pickle in torch's own checkpoints, is none of them.
_TEXTS = "|".join(map(re.escape, (STATE, TOKENIZER, BROUGHT)))
FILE_NAME = re.compile(rf"{_TEXTS}|[\w-]+{re.escape(SUFFIX)}")

log = logging.getLogger(__name__)


def _check_file_name(name: str) -> str:
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"names '{name}', which no checkpoint holds")
    return name


class CheckpointManifest(BaseModel):
    """The sums of all other files of a checkpoint, and where its tensors lie in them. It also
    holds a sum of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[5] = FORMAT
    step: int
    attempt: int
    files: dict[Annotated[str, AfterValidator(_check_file_name)], FileChunks]
    tensors: dict[str, IndexedTensor]

    @property
    def tensor_files(self) -> list[str]:
        """The names of the files with tensors, in the order in which the index numbers them."""
        return sorted(name for name in self.files if name.endswith(SUFFIX))

    def encode(self) -> bytes:
        """The bytes of the file."""
        entries = self.model_dump(mode="json")
        return json.dumps(entries | {"sum": digest(entries)}, indent=1).encode()

    @classmethod
    def read(cls, folder: str) -> "CheckpointManifest":
        """That of the checkpoint in `folder`. Raises DamagedCheckpoint; DataError if it is whole
        and of another format."""
        path = storage.join(folder, MANIFEST)
        try:
            entries = json.loads(storage.read(path))
            right = entries.pop("sum", None)
            found = entries.get("format")
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{path}: gone, or never written") from None
        except (ValueError, AttributeError):
            raise DamagedCheckpoint(f"{path}: torn") from None
        if right != digest(entries):
            raise DamagedCheckpoint(f"{path}: other bytes than were written")
        if found != FORMAT:
            raise DataError(
                f"{path}: of format {found}, but this trainrig reads {FORMAT}; use the trainrig "
                "that wrote it, or another `output`"
            )
        try:
            return cls.model_validate(entries)
        except ValidationError as error:
            what = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise DamagedCheckpoint(f"{path}: not as trainrig writes it: {what}") from None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found to be whole."""

    path: str  # the attempt's folder, which holds the files
    step: int
    attempt: int


def name_checkpoint_folder(place: str, step: int, attempt: int) -> str:
    """Where the checkpoint of `step` lies below `place`, a folder of checkpoints."""
    return storage.join(place, f"step_{step:08d}", f"attempt-{attempt:04d}")


def commit(target: str, manifest: CheckpointManifest) -> None:
    """Make the folder `target`, all of whose files are written, a checkpoint."""
    created = storage.create(storage.join(target, MANIFEST), manifest.encode())
    if not created:
        raise ClusterError(f"{target}: was committed before, by whom else?")


def find_newest_valid(
    folder: RunFolder,
    below: str = "",
    thorough: bool = True,
    copy: str | None = None,
    kinds: tuple[str, ...] | None = None,
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of the run that is whole, and what was wrong with newer ones.

    With `below`, only those in that folder are looked at. `thorough` reads and checks every byte,
    of the tensors those alone whose names begin with one of `kinds`, if these are given; without,
    it is enough that the files of tensors are there, as long as they should be, and that no rank
    has marked the checkpoint as damaged: who loads it checks the rest. In `copy`, where the run
    keeps a second copy of each, one is looked for only if there is none in the run folder.
    """
    newest: Checkpoint | None = None
    damages: list[str] = []
    for place in [folder.checkpoints, *([copy] if copy else [])]:
        for path, step, number in list_committed(folder, place):
            if not path.startswith(below):
                continue
            damage = find_damage(path, thorough, kinds)
            if damage is None:
                newest = Checkpoint(path, step, number)
                break
            damages.append(damage)
        if newest:
            break
    after = newest.step if newest else -1
    return newest, _find_without_manifest(folder, below, after) + damages


def _find_without_manifest(folder: RunFolder, below: str, after: int) -> list[str]:
    """What of the run's checkpoints later than step `after` has lost its manifest, in words.

    Those that were never whole have none either: one under way, or of an attempt that died in it.
    They are not damaged, and never had an event of their own. Nor is what clean-up has left, which
    takes the manifest first, but never of the newest.
    """
    found = []
    for event in folder.read_events():
        if event["event"] != "checkpoint" or event["step"] <= after:
            continue
        path = name_checkpoint_folder(folder.checkpoints, event["step"], event["attempt"])
        gone = not storage.exists(storage.join(path, MANIFEST))
        if path.startswith(below) and gone and storage.list_files(path):
            found.append(f"{storage.join(path, MANIFEST)}: gone, though its checkpoint was whole")
    return list(dict.fromkeys(found))


def list_committed(folder: RunFolder, place: str) -> Iterator[tuple[str, int, int]]:
    """(folder, step, attempt) of everything at `place` with a manifest that counts, newest first.

    It counts only if no later attempt resumed from before it: what an outlived worker commits
    behind its successors' backs is ignored (fencing), and so is what they found to be damaged.
    """
    attempts = folder.read_attempts()
    found = []
    for path in storage.list_files(place, f"/{MANIFEST}"):
        if match := COMMIT.fullmatch(path):
            found.append((int(match[2]), int(match[3]), path.removesuffix(f"/{MANIFEST}")))
    for step, number, path in sorted(found, reverse=True):
        if folder.counts(step, number, attempts):
            yield path, step, number


def find_damage(
    path: str, thorough: bool = True, kinds: tuple[str, ...] | None = None
) -> str | None:
    """What is wrong with the checkpoint at `path`, in words; None if it is whole. Raises DataError
    if it is of another format.

    Unless `thorough`, the bytes of the tensors are not read, only counted; `kinds`: what the names
    of those begin with that are.
    """
    try:
        manifest = CheckpointManifest.read(path)
    except DamagedCheckpoint as damage:
        return str(damage)
    if marked := _read_mark(path):
        return marked
    sizes = storage.list_sizes(path)
    for name, wanted in manifest.files.items():
        file = storage.join(path, name)
        if file not in sizes:
            return f"{file}: gone"
        if sizes[file] != wanted.bytes:
            return f"{file}: {sizes[file]} bytes of {wanted.bytes}"
    try:
        return find_damaged_chunk(_list_chunks_to_check(path, manifest, thorough, kinds))
    except DamagedCheckpoint as damage:
        return str(damage)


def _list_chunks_to_check(
    path: str, manifest: CheckpointManifest, thorough: bool, kinds: tuple[str, ...] | None
) -> Iterator[tuple[str, Chunk]]:
    """The chunks to check, each with the path of its file. Raises DamagedCheckpoint."""
    tensor_files = manifest.tensor_files
    for name, wanted in manifest.files.items():
        if name not in tensor_files or (thorough and kinds is None):
            yield from ((storage.join(path, name), chunk) for chunk in wanted.iterate_chunks())
    if thorough and kinds is not None:
        rows = {n: (0, t.rows) for n, t in manifest.tensors.items() if n.startswith(kinds)}
        files = [manifest.files[name] for name in tensor_files]
        for each in plan_reads(path, manifest.tensors, files, rows):
            yield storage.join(path, tensor_files[each.file]), each.chunk


def mark_damaged(path: str, problem: str) -> None:
    """Have every later reader pass over the checkpoint at `path`, which a rank could not load."""
    try:
        storage.create(storage.join(path, DAMAGED), json.dumps({"problem": problem}).encode())
    except (OSError, ClusterError) as error:  # a full disk, say: it is then found again
        log.warning("%s: could not be marked as damaged: %s", path, error)


def _read_mark(path: str) -> str | None:
    try:
        mark: dict[str, Any] = json.loads(storage.read(storage.join(path, DAMAGED)))
        return str(mark["problem"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError):
        return f"{path}: marked as damaged"
