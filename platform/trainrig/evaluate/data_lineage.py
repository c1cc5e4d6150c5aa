"""The family tree of a checkpoint: the runs, shards, documents and sources that it was made from.

A manifest records the inputs of its stage as fingerprints of their contents, not as paths. So a
folder is an input if its content has the fingerprint, wherever it lies. Folders are looked for at
the paths in run files, and beside the folders that were found. An input that is in none of them,
such as web archives, ends its branch and is listed with its fingerprint.

An averaged, merged or imported model has no run. The tree continues with the parents that the model
records (train/checkpoint/model_parents.py).
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainrig import manifest, storage
from trainrig.corpus.documents import KEPT, read_columns
from trainrig.errors import DataError, InputError
from trainrig.manifest import Claim, Manifest
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import ModelParents, find_checkpoint, read_parents
from trainrig.train.run.run_folder import RunFolder

RUN_FILE = "run.toml"
CHECKPOINTS = "checkpoints"
# Keys of run files that name folders of inputs.
PATH_KEYS = ("checkpoint", "tokens", "conversations", "continue_from")
MOST_LISTED = 6  # entries of a table of counts that are shown; JSON has all
LICENCES = "licences"  # count of kept documents by licence
# Names of a document's metadata that hold its licence.
LICENCE_FIELDS = ("license", "licence", "license_name", "spdx")
# Counts of a stage that describe its data, of those that its manifest has.
TOLD_COUNTS = (
    *("documents_in", "documents_kept", "kept_of", "dropped_by", "masked"),
    *("train_documents", "train_tokens", "train_tokens_of", "held_out_documents", "vocabulary"),
    *("train_conversations", "rows", "steps", "parameters", "conversations"),
)


@dataclass(frozen=True)
class LineageNode:
    """An output of a stage, or an input that no known folder holds."""

    role: str  # input name in the stage that reads it
    fingerprint: str  # content fingerprint, recorded by the stage that reads it
    folder: str | None  # None: in no folder that was searched
    stage: str | None = None
    trainrig: str | None = None  # version that made it
    verified: bool = False  # True if the files were compared with their SHA-256
    counts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # filters, sources, objective and so on
    # Versions of trainrig, Python and packages that made it; filters depend on these.
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple["LineageNode", ...] = ()

    def iterate(self) -> Iterator["LineageNode"]:
        """Yield this node and all nodes below it, each before its inputs."""
        yield self
        for node in self.inputs:
            yield from node.iterate()

    def list_distinct(self) -> list["LineageNode"]:
        """Return the nodes with different fingerprints, each before its inputs."""
        return list({node.fingerprint: node for node in self.iterate()}.values())

    def to_json(self) -> dict[str, Any]:
        """Return the tree as a JSON object."""
        return asdict(self)


def trace_lineage(path: str, search: Iterable[str] = (), verify: bool = False) -> LineageNode:
    """Return the family tree of the checkpoint at `path`.

    `search` are further folders, in which and below which inputs may lie. `verify` reads all files
    of each folder that is found and compares their SHA-256; without it, a damaged input counts as
    not found. Raises DataError if there is no checkpoint, or if a file that `verify` reads differs
    from its manifest.
    """
    resolved = storage.make_absolute(checkpoint.resolve(path))
    catalogue = _Catalogue([_find_parent(find_run_folder(resolved)), *search])
    key = checkpoint.compute_content_key(resolved)
    return _describe_checkpoint("checkpoint", key, resolved, catalogue, verify, frozenset())


def find_run_folder(resolved: str) -> str:
    """Return RUN of a checkpoint at RUN/checkpoints/STEP/ATTEMPT."""
    before, found, _ = resolved.rpartition(f"/{CHECKPOINTS}/")
    return before if found else resolved


def _find_parent(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[0] or "/"


class _Catalogue:
    """The folders of stages that were found, by the fingerprint of their contents."""

    def __init__(self, places: Iterable[str]) -> None:
        self._manifests: dict[str, str] = {}  # folder by the fingerprint of its content
        self._checkpoints: dict[str, str] = {}  # checkpoint by its key
        self._runs: list[str] = []  # folders with checkpoints, of which the newest were added
        self._seen: set[str] = set()
        self._licences: dict[str, dict[str, int]] = {}  # counts by fingerprint
        self._verified: set[str] = set()  # folders and checkpoints
        # Node by fingerprint, with the number of known outputs when it was described.
        self._described: dict[str, tuple[int, LineageNode]] = {}
        for place in places:
            self.add(storage.make_absolute(place))

    def add(self, place: str) -> None:
        """Add the folder `place` and those directly in it."""
        try:
            folders = storage.list_folders(place)
        except OSError:  # a folder that only its owner may list
            folders = []
        for folder in (place, *folders):
            folder = folder.rstrip("/")
            if folder in self._seen:
                continue
            self._seen.add(folder)
            try:
                made = manifest.find_manifest(folder)
                steps = storage.list_folders(storage.join(folder, CHECKPOINTS))
            except (DataError, OSError):  # a folder of other software, or of another user
                continue
            if made is not None:
                self._manifests.setdefault(made.content, folder)
            if steps:
                self._runs.append(folder)
                self._add_checkpoint(folder)

    def _add_checkpoint(self, run_folder: str) -> None:
        try:
            resolved = checkpoint.resolve(run_folder, verify=False)
            self._checkpoints.setdefault(checkpoint.compute_content_key(resolved), resolved)
        except (InputError, OSError):  # no whole checkpoint yet, or not readable for this user
            return

    def add_paths(self, run_folder: str) -> None:
        """Add the folders that the run file of a run names, and those beside them."""
        file = storage.join(run_folder, RUN_FILE)
        if not storage.exists(file):
            return
        try:
            settings = tomllib.loads(storage.read(file).decode())
        except ValueError as error:
            raise DataError(f"{file}: not TOML ({error}); restore it") from None
        for path in (settings.get(key) for key in PATH_KEYS):
            if isinstance(path, str) and storage.find_first(path):
                folder = find_run_folder(storage.make_absolute(path.rstrip("/")))
                self.add(_find_parent(folder))
                if path.rstrip("/") != folder:
                    self._add_checkpoint(path.rstrip("/"))

    def add_parents(self, record: ModelParents, folder: str) -> None:
        """Add the checkpoints that a model was made from, and the folders beside their runs.

        `folder` holds the model. If a run was moved, all checkpoints of the runs that were found
        are added instead.
        """
        for parent in dict.fromkeys(record.parents):
            if path := find_checkpoint(parent, folder):
                self.add(_find_parent(find_run_folder(path)))
                self._add_checkpoint(path)
        while self._runs and any(p.content not in self._checkpoints for p in record.parents):
            run = RunFolder(self._runs.pop(0))
            for path, _, _ in checkpoint.list_committed(run, run.checkpoints):
                self._add_checkpoint(path)

    def count_licences(self, folder: str, made: Manifest) -> dict[str, int]:
        """Return what `count_licences` does; a folder that is an input twice is read once."""
        if made.content not in self._licences:
            self._licences[made.content] = count_licences(folder, made)
        return self._licences[made.content]

    def verify_once(self, place: str, verify: Callable[[], None]) -> None:
        """Call `verify` for a folder or checkpoint, but not a second time."""
        if place not in self._verified:
            verify()
            self._verified.add(place)

    def describe_once(
        self, fingerprint: str, describe: Callable[[], LineageNode | None]
    ) -> LineageNode | None:
        """Return the node of `describe`, or the same again while no further output was found.

        Averaged checkpoints are of one run, so without this a family that averages several times
        would be read from the disk once for each way through it.
        """
        if fingerprint in self._described:
            known, node = self._described[fingerprint]
            if known == self._count_known():
                return node
        found = describe()
        if found is not None:
            self._described[fingerprint] = (self._count_known(), found)
        return found

    def _count_known(self) -> int:
        return len(self._manifests) + len(self._checkpoints)

    def find_folder(self, fingerprint: str) -> str | None:
        """Return the folder whose content has the fingerprint, or None."""
        return self._manifests.get(fingerprint)

    def find_checkpoint(self, key: str) -> str | None:
        """Return the checkpoint with the key, or None."""
        return self._checkpoints.get(key)


def _describe_checkpoint(
    role: str, key: str, resolved: str, catalogue: _Catalogue, verify: bool, above: frozenset[str]
) -> LineageNode:
    """Describe a checkpoint and its inputs. Raises DataError if `verify` finds damage."""
    if verify:
        catalogue.verify_once(resolved, lambda: _verify_checkpoint(resolved))
    folder = find_run_folder(resolved)
    catalogue.add_paths(folder)
    try:
        claim = manifest.read_claim(folder)
    except DataError:
        claim = None
    if claim is None:
        return _describe_model(role, key, resolved, catalogue, verify, above)
    made = manifest.find_manifest(folder)
    return _build_node(role, key, resolved, claim, made, catalogue, verify, above)


def _describe_model(
    role: str, key: str, resolved: str, catalogue: _Catalogue, verify: bool, above: frozenset[str]
) -> LineageNode:
    """Describe a model that no run made, with the checkpoints that it was made from."""
    folder = find_run_folder(resolved)
    record = read_parents(folder)
    if record is None:
        return LineageNode(role, key, resolved, verified=verify)
    catalogue.add_parents(record, folder)
    return LineageNode(
        role=role,
        fingerprint=key,
        folder=resolved,
        stage=record.verb,
        trainrig=record.trainrig,
        verified=verify,
        versions={"trainrig": record.trainrig},
        inputs=tuple(
            _describe_input(parent.role, parent.content, catalogue, verify, above | {key})
            for parent in record.parents
        ),
    )


def _verify_checkpoint(resolved: str) -> None:
    if damage := checkpoint.find_damage(resolved):
        raise DataError(f"{resolved}: the checkpoint is damaged ({damage}); restore it")


def _describe_input(
    role: str, fingerprint: str, catalogue: _Catalogue, verify: bool, above: frozenset[str]
) -> LineageNode:
    lost = LineageNode(role, fingerprint, None)
    if fingerprint in above:  # no stage reads its own output; a damaged folder may say so
        return lost
    try:
        found = catalogue.describe_once(
            fingerprint, lambda: _describe_found(role, fingerprint, catalogue, verify, above)
        )
    except DataError:  # a damaged input; the checkpoint itself can be used without it
        if verify:
            raise
        return lost
    return replace(found, role=role) if found else lost


def _describe_found(
    role: str, fingerprint: str, catalogue: _Catalogue, verify: bool, above: frozenset[str]
) -> LineageNode | None:
    if resolved := catalogue.find_checkpoint(fingerprint):
        return _describe_checkpoint(role, fingerprint, resolved, catalogue, verify, above)
    folder = catalogue.find_folder(fingerprint)
    if folder is None:
        return None
    made = manifest.read_manifest(folder)
    if verify:
        catalogue.verify_once(folder, lambda: manifest.verify_files(folder, made))
    return _build_node(role, fingerprint, folder, made, made, catalogue, verify, above)


def _build_node(
    role: str,
    fingerprint: str,
    folder: str,
    claim: Claim,
    made: Manifest | None,
    catalogue: _Catalogue,
    verify: bool,
    above: frozenset[str],
) -> LineageNode:
    counts = dict(made.counts) if made else {}
    if made is not None and (licences := catalogue.count_licences(folder, made)):
        counts[LICENCES] = licences
    return LineageNode(
        role=role,
        fingerprint=fingerprint,
        folder=folder,
        stage=claim.stage,
        trainrig=claim.environment.get("trainrig"),
        verified=verify,
        counts={name: counts[name] for name in (*TOLD_COUNTS, LICENCES) if name in counts},
        settings=_choose_settings(claim),
        versions=claim.environment,
        inputs=tuple(
            _describe_input(name, content, catalogue, verify, above | {fingerprint})
            for name, content in sorted(claim.inputs.items())
        ),
    )


def count_licences(folder: str, made: Manifest) -> dict[str, int]:
    """Return the number of kept documents by licence, if `curate` kept a field with licences.

    Only the column of metadata is read, and only from sources whose `reading.fields.metadata` names
    one of LICENCE_FIELDS. Documents of other sources, or without a licence, count as "not stated".
    Returns {} if no source states licences. Raises DataError if a file is missing or damaged.
    """
    sources = made.config.get("sources", ()) if made.stage == "curate" else ()
    if not any(set(LICENCE_FIELDS) & set(_list_metadata(source)) for source in sources):
        return {}
    counts = Counter[str]()
    for name in made.files:
        if not name.startswith(f"{KEPT}/") or not name.endswith(".parquet"):
            continue
        path = storage.join(folder, name)
        try:
            table = read_columns(path, ["metadata"])
        except (OSError, ValueError) as error:  # pyarrow's errors for damaged files are of these
            raise DataError(f"{path}: cannot be read ({error}); restore it") from None
        for text in table["metadata"].to_pylist():
            metadata = json.loads(text or "{}")
            stated = next((metadata[key] for key in LICENCE_FIELDS if metadata.get(key)), None)
            counts[stated or "not stated"] += 1
    return dict(sorted(counts.items()))


def _list_metadata(source: Mapping[str, Any]) -> list[str]:
    """Return the names of the metadata that `curate` kept of the documents of a source."""
    return list(source.get("reading", {}).get("fields", {}).get("metadata", ()))


def _choose_settings(claim: Claim) -> dict[str, Any]:
    """Return the settings that decide what is in the data of a stage."""
    config = claim.config
    told = {
        name: config[name]
        for name in ("objective", "decontamination", "near_duplicates", "pii", "held_out", "lora")
        if config.get(name) is not None
    }
    if claim.stage == "curate":
        told["decontamination"] = config.get("decontamination")
        told["filters"] = {
            source["name"]: [rule["kind"] for rule in source.get("filters", ())]
            for source in config.get("sources", ())
        }
    return told


def render_lineage(root: LineageNode) -> Iterator[str]:
    """Yield the lines of the tree, each input indented below the stage that read it."""
    yield from _render_node(root, "", set())
    nodes = list(root.iterate())
    found = {node.fingerprint for node in nodes if node.folder is not None}
    every = {node.fingerprint for node in nodes}
    sums = (
        "all files of these have their SHA-256"
        if root.verified
        else "their fingerprints agree; --verify reads their files as well"
    )
    yield f"{len(found)} of {len(every)} outputs and inputs were found; {sums}."


def _render_node(node: LineageNode, indent: str, shown: set[str]) -> Iterator[str]:
    where = node.folder or "not in the searched folders"
    made = f", made by `{node.stage}` of trainrig {node.trainrig}" if node.stage else ""
    again = node.fingerprint in shown and node.folder is not None
    shown.add(node.fingerprint)
    yield f"{indent}{node.role}: {where}{made} ({node.fingerprint[:12]})" + (
        ", as above" if again else ""
    )
    if again:
        return
    for name, value in {**node.counts, **node.settings}.items():
        yield f"{indent}    {name}: {format_value(value)}"
    for below in node.inputs:
        yield from _render_node(below, indent + "  ", shown)


def format_value(value: Any) -> str:
    """Return a count or a setting in words; of a table of counts, the MOST_LISTED largest."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping) and all(isinstance(v, int) for v in value.values()):
        largest = sorted(value.items(), key=lambda entry: (-entry[1], entry[0]))
        more = f", and {len(largest) - MOST_LISTED} more" if len(largest) > MOST_LISTED else ""
        return ", ".join(f"{n} {count:,}" for n, count in largest[:MOST_LISTED]) + more or "none"
    if isinstance(value, Mapping) and "kind" in value:
        return str(value["kind"])
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {format_value(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value)) or "none"
    return "none" if value is None else str(value)


def render_card_section(root: LineageNode) -> list[str]:
    """Return the Markdown lines of a model card's section on data."""
    lines = ["## Data", "", "| role | made by | fingerprint | what it holds |", "|---|---|---|---|"]
    for node in root.list_distinct()[1:]:
        told = {**node.counts, **node.settings}
        holds = "; ".join(f"{name}: {format_value(value)}" for name, value in told.items())
        cells = (node.role, node.stage or "–", f"`{node.fingerprint[:16]}`", holds or "–")
        lines.append("| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |")
    return [*lines, ""]
