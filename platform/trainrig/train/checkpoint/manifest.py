"""The manifest, created last, that makes a folder a checkpoint; which ones count, and are deleted.

Deleted are the checkpoints that the run file does not keep, and the remains of failed saves.
"""

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
from trainrig.train.checkpoint import tensor_index
from trainrig.train.retention import Checkpoints
from trainrig.train.run.checkpoint_scores import find_held_for_scores
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run_file.training_settings import Training

FORMAT: Literal[5] = 5
MANIFEST = "manifest.json"
STATE = "state.json"
TOKENIZER = "tokenizer.json"
BROUGHT = "brought.json"  # further files of a tokenizer that was made elsewhere
DAMAGED = "damaged.json"
KEPT = "kept.json"  # mark of another run that needs the checkpoint, whatever its own run keeps
SUFFIX = ".safetensors"
COMMIT = re.compile(r"(.*/step_(\d+))/attempt-(\d+)/manifest\.json")
# No other file is ever opened, so not `.metadata`, a pickle in torch's own checkpoints.
_TEXTS = "|".join(map(re.escape, (STATE, TOKENIZER, BROUGHT)))
FILE_NAME = re.compile(rf"{_TEXTS}|[\w-]+{re.escape(SUFFIX)}")

log = logging.getLogger(__name__)


def _check_file_name(name: str) -> str:
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"names '{name}', which cannot be a file of a checkpoint")
    return name


class CheckpointManifest(BaseModel):
    """Checksums of all other files of a checkpoint, and the index of its tensors.

    The file also contains a checksum of itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[5] = FORMAT
    step: int
    attempt: int
    files: dict[Annotated[str, AfterValidator(_check_file_name)], tensor_index.FileChunks]
    tensors: dict[str, tensor_index.IndexedTensor]

    @property
    def tensor_files(self) -> list[str]:
        """Names of the files with tensors, in the order in which the index numbers them."""
        return sorted(name for name in self.files if name.endswith(SUFFIX))

    def encode(self) -> bytes:
        """Return the bytes of the manifest file."""
        entries = self.model_dump(mode="json")
        return json.dumps(entries | {"sum": digest(entries)}, indent=1).encode()

    @classmethod
    def read(cls, folder: str) -> "CheckpointManifest":
        """Read the manifest of the checkpoint in `folder`.

        Raises DamagedCheckpoint if it is missing or damaged, and DataError if it is valid but of
        another format version.
        """
        path = storage.join(folder, MANIFEST)
        try:
            entries = json.loads(storage.read(path))
            right = entries.pop("sum", None)
            found = entries.get("format")
        except FileNotFoundError:
            raise tensor_index.DamagedCheckpoint(f"{path}: missing, or never written") from None
        except (ValueError, AttributeError):
            raise tensor_index.DamagedCheckpoint(f"{path}: the file is incomplete") from None
        if right != digest(entries):
            raise tensor_index.DamagedCheckpoint(f"{path}: bytes differ from those written")
        if found != FORMAT:
            raise DataError(
                f"{path}: format {found} is not supported, only {FORMAT}; use the trainrig version "
                "that wrote it, or another `output`"
            )
        try:
            return cls.model_validate(entries)
        except ValidationError as error:
            what = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise tensor_index.DamagedCheckpoint(f"{path}: not a valid manifest: {what}") from None


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint that was found to be valid."""

    path: str  # folder of the attempt, which contains the files
    step: int
    attempt: int


def name_checkpoint_folder(place: str, step: int, attempt: int) -> str:
    """Return the folder of the checkpoint of `step` and `attempt` below `place`."""
    return storage.join(place, f"step_{step:08d}", f"attempt-{attempt:04d}")


def commit(target: str, manifest: CheckpointManifest) -> None:
    """Make the folder `target` a checkpoint, once all of its other files are written.

    Raises ClusterError if it already is one.
    """
    created = storage.create(storage.join(target, MANIFEST), manifest.encode())
    if not created:
        raise ClusterError(f"{target}: another process has already committed this checkpoint")


def find_newest_valid(
    folder: RunFolder,
    below: str = "",
    thorough: bool = True,
    copy: str | None = None,
    kinds: tuple[str, ...] | None = None,
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest valid checkpoint of the run, and the problems of newer ones.

    Args:
        folder: The run folder.
        below: Only checkpoints whose path begins with this are considered.
        thorough: Whether to read and verify all bytes. Otherwise, tensor files must exist with the
        right size, and no rank may have marked the checkpoint as damaged; their bytes are verified
        when they are loaded.
        copy: Where the run stores second copies. It is searched only if the run folder has no valid
        checkpoint.
        kinds: If given, `thorough` reads only tensors whose names begin with one of these.
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
    """Return a problem for each checkpoint after step `after` whose manifest was lost.

    Folders that never were a checkpoint, of saves in progress or of dead attempts, are not
    reported: they have no `checkpoint` event. Nor are the remains of a clean-up, which removes the
    manifest first, but never that of the newest checkpoint.
    """
    saved = [
        name_checkpoint_folder(folder.checkpoints, event["step"], event["attempt"])
        for event in folder.read_events()
        if event["event"] == "checkpoint" and event["step"] > after
    ]
    paths = [path for path in dict.fromkeys(saved) if path.startswith(below)]
    if not paths:
        return []
    files = set(storage.list_files(folder.checkpoints))
    left = {path.rpartition("/")[0] for path in files}
    manifests = [storage.join(path, MANIFEST) for path in paths if path in left]
    return [
        f"{path}: missing, though its checkpoint was complete"
        for path in manifests
        if path not in files
    ]


def list_committed(folder: RunFolder, place: str) -> Iterator[tuple[str, int, int]]:
    """Yield (folder, step, attempt) of each committed checkpoint at `place`, newest first.

    Only those count that no later attempt ignored by resuming from an earlier step. So checkpoints
    that a replaced worker still commits are ignored (fencing), as are those found to be damaged.
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
    """Describe the problem of the checkpoint at `path`; return None if it is valid.

    Unless `thorough`, only the sizes of tensor files are compared, not their bytes. `kinds`:
    prefixes of the names of tensors to read. Raises DataError if the checkpoint has another format
    version.
    """
    try:
        manifest = CheckpointManifest.read(path)
    except tensor_index.DamagedCheckpoint as damage:
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
        return tensor_index.find_damaged_chunk(
            _list_chunks_to_check(path, manifest, thorough, kinds)
        )
    except tensor_index.DamagedCheckpoint as damage:
        return str(damage)


def _list_chunks_to_check(
    path: str, manifest: CheckpointManifest, thorough: bool, kinds: tuple[str, ...] | None
) -> Iterator[tuple[str, tensor_index.Chunk]]:
    """Yield the chunks to verify, each with the path of its file.

    Raises DamagedCheckpoint if the index does not match the files.
    """
    tensor_files = manifest.tensor_files
    for name, wanted in manifest.files.items():
        if name not in tensor_files or (thorough and kinds is None):
            yield from ((storage.join(path, name), chunk) for chunk in wanted.iterate_chunks())
    if thorough and kinds is not None:
        rows = {n: (0, t.rows) for n, t in manifest.tensors.items() if n.startswith(kinds)}
        files = [manifest.files[name] for name in tensor_files]
        for read in tensor_index.plan_reads(path, manifest.tensors, files, rows):
            yield storage.join(path, tensor_files[read.file]), read.chunk


def mark_damaged(path: str, problem: str) -> None:
    """Mark the checkpoint at `path`, which a rank could not load, so that readers skip it."""
    try:
        storage.create(storage.join(path, DAMAGED), json.dumps({"problem": problem}).encode())
    except (OSError, ClusterError) as error:  # such as a full disk: the damage is then found again
        log.warning("%s: could not be marked as damaged: %s", path, error)


def _read_mark(path: str) -> str | None:
    try:
        mark: dict[str, Any] = json.loads(storage.read(storage.join(path, DAMAGED)))
        return str(mark["problem"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError):
        return f"{path}: marked as damaged"


STEP_FOLDER = re.compile(r"step_(\d+)")
ATTEMPT_FOLDER = re.compile(r"attempt-(\d+)")


def clean_up(
    folder: RunFolder,
    place: str,
    attempt: TrainingAttempt,
    settings: Checkpoints,
    training: Training | None = None,
) -> None:
    """Delete the run's checkpoints at `place` that `settings` do not keep.

    Called by the process that has just committed the newest checkpoint there, as part of `attempt`.
    Only checkpoints that count and have all their files are kept. Folders without a manifest are
    deleted if they belong to earlier attempts, which are over; those of later attempts are left
    alone. `training`: its evaluations may need further checkpoints.
    """
    committed = list(list_committed(folder, place))
    damages = storage.map_files(
        lambda path: find_damage(path, thorough=False), [path for path, _, _ in committed]
    )
    found = [entry for entry, damage in zip(committed, damages, strict=True) if damage is None]
    whole = {path: step for path, step, _ in found}
    held = set[int]()
    passing = set[int]()
    if training and training.evaluations:
        held, passing = find_held_for_scores(folder, training, {s: n for _, s, n in found[::-1]})
    kept = settings.select_kept(whole.values(), held, passing)
    step_folders = [
        path
        for path in storage.list_folders(place)
        if STEP_FOLDER.fullmatch(path.rpartition("/")[2])
    ]
    inside = storage.map_files(storage.list_folders, step_folders)
    for step_folder, paths in zip(step_folders, inside, strict=True):
        left = len(paths)
        for path in paths:
            number = ATTEMPT_FOLDER.fullmatch(path.rpartition("/")[2])
            if number is None or int(number[1]) > attempt.number or whole.get(path) in kept:
                continue
            if storage.exists(storage.join(path, KEPT)):  # needed as the base of an adapter
                continue
            manifest = storage.join(path, MANIFEST)
            if int(number[1]) < attempt.number or storage.exists(manifest):
                # first, so that an interrupted deletion leaves no checkpoint
                storage.delete(manifest)
                storage.delete_folder(path)
                left -= 1
        if not left and not storage.list_folders(step_folder):  # a later attempt may have begun one
            storage.delete_folder(step_folder)
