"""The training data of a checkpoint as Croissant 1.0, the JSON-LD description of data sets.

Each file of the curated documents, tokens and conversations that were found is a `FileObject` with
its SHA-256. Parquet files with documents, and with the places of documents in the tokens, are
record sets as well. (https://docs.mlcommons.org/croissant/docs/croissant-spec.html)
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainrig import manifest, storage
from trainrig.corpus.documents import KEPT
from trainrig.errors import ConfigError
from trainrig.evaluate.data_lineage import LICENCES, LineageNode, format_value
from trainrig.manifest import Manifest

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
# Properties that the format requires and that only the publisher knows.
REQUIRED = ("creator", "datePublished", "license", "url")
PROPERTIES = (*REQUIRED, "name", "description", "version", "citeAs")
# Stages whose files are training data; others make models and tokenizers.
DATA_STAGES = ("curate", "tokenize", "conversations", "pages")
TERMS = (  # names of the format, by which its keys get their meaning
    *("citeAs", "column", "extract", "field", "fileProperty", "fileObject", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet"),
    *("references", "regex", "repeated", "replace", "samplingRate", "separator", "source"),
    *("subField", "transform", "equivalentProperty"),
)
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{term: f"cr:{term}" for term in TERMS},
}
FORMATS = {".parquet": "application/x-parquet", ".json": "application/json"}
OTHER_FORMAT = "application/octet-stream"
DOCUMENT_FIELDS = ("id", "url", "text", "source", "language", "date", "metadata")
# Columns of the index of documents in token shards, with their types.
INDEX_FIELDS = {
    **dict.fromkeys(("id", "source", "url", "corpus_file"), "sc:Text"),
    **dict.fromkeys(("offset", "length", "text_bytes", "corpus_row"), "sc:Integer"),
}


def build_croissant(root: LineageNode, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the Croissant metadata of the data in a family tree.

    `properties`: values of PROPERTIES, which replace those that the tree gives.
    """
    found = [
        (node, manifest.read_manifest(node.folder))
        for node in root.list_distinct()
        if node.folder is not None and node.stage in DATA_STAGES
    ]
    licences = sorted({name for node, _ in found for name in node.counts.get(LICENCES, {})})
    stated = [name for name in licences if name != "not stated"]
    metadata: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": f"training-data-{root.fingerprint[:12]}",
        "description": describe_data(root),
        "version": "1.0.0",
    }
    if stated:
        metadata["license"] = stated
    metadata |= {name: value for name, value in properties.items() if name != "creator"}
    if creator := properties.get("creator"):
        metadata["creator"] = {"@type": "sc:Organization", "name": creator}
    metadata["distribution"] = [
        entry for node, made in found for entry in _iterate_files(node, made)
    ]
    metadata["recordSet"] = [
        entry for node, made in found for entry in _iterate_record_sets(node, made)
    ]
    return metadata


def read_properties(given: Iterable[str]) -> dict[str, str]:
    """Read `NAME=VALUE` options. Raises ConfigError for a name that is not in PROPERTIES."""
    found = {}
    for option in given:
        name, equals, value = option.partition("=")
        if not equals or not value or name not in PROPERTIES:
            raise ConfigError(
                f"lineage --property {option}: write NAME=VALUE, with one of the names "
                f"{', '.join(PROPERTIES)}"
            )
        found[name] = value
    return found


def describe_data(root: LineageNode) -> str:
    """Return one paragraph on the stages behind a checkpoint, with counts, filters and versions."""
    parts = [f"Training data of the checkpoint with the fingerprint {root.fingerprint}."]
    for node in root.list_distinct():
        if node.stage not in DATA_STAGES:
            continue
        told = {**node.counts, **node.settings}
        values = "; ".join(f"{name}: {format_value(value)}" for name, value in told.items())
        parts.append(
            f"{node.role} ({node.fingerprint[:12]}), made by `{node.stage}` of trainrig "
            f"{node.trainrig}: {values}."
        )
    lost = [node for node in root.list_distinct() if node.folder is None]
    if lost:
        names = ", ".join(f"{node.role} ({node.fingerprint[:12]})" for node in lost)
        parts.append(f"Inputs whose files were not found: {names}.")
    return " ".join(parts)


def _iterate_files(node: LineageNode, made: Manifest) -> Iterator[dict[str, Any]]:
    assert node.folder is not None
    for name, entry in made.files.items():
        suffix = f".{name.rpartition('.')[2]}"
        yield {
            "@type": "cr:FileObject",
            "@id": _build_id(node, name),
            "name": name,
            "contentUrl": storage.join(node.folder, name),
            "contentSize": f"{entry.bytes} B",
            "encodingFormat": FORMATS.get(suffix, OTHER_FORMAT),
            "sha256": entry.sha256,
        }


def _iterate_record_sets(node: LineageNode, made: Manifest) -> Iterator[dict[str, Any]]:
    """Yield a record set for each Parquet file of documents, or of their places in tokens."""
    for name in made.files:
        if made.stage == "curate" and re.fullmatch(rf"{KEPT}/.*\.parquet", name):
            yield _build_record_set(node, name, dict.fromkeys(DOCUMENT_FIELDS, "sc:Text"))
        elif name.endswith(".index.parquet"):
            yield _build_record_set(node, name, INDEX_FIELDS)


def _build_record_set(node: LineageNode, name: str, types: Mapping[str, str]) -> dict[str, Any]:
    file = _build_id(node, name)
    own = f"{file}/records"
    return {
        "@type": "cr:RecordSet",
        "@id": own,
        "name": own,
        "description": f"Rows of {name} of {node.role}.",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{own}/{column}",
                "name": f"{own}/{column}",
                "description": f"Column {column}.",
                "dataType": kind,
                "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
            }
            for column, kind in types.items()
        ],
    }


def _build_id(node: LineageNode, name: str) -> str:
    """Return the id of a file; an input that is used twice has the same ids."""
    return f"{node.fingerprint[:12]}/{name}"
