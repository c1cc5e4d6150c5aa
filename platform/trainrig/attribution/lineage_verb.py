"""Command-line verb that shows what a checkpoint was made from: lineage."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trainrig import storage
from trainrig.attribution.attribution_options import VerifyFiles
from trainrig.command_line import Checkpoint, Json, Search, option
from trainrig.errors import ConfigError

if TYPE_CHECKING:
    from trainrig.evaluate.data_lineage import LineageNode

Format = Literal["text", "json", "croissant", "prov"]


def lineage(
    checkpoint: Checkpoint,
    search: Search = None,
    verify: VerifyFiles = False,
    format_: Annotated[
        Format,
        option(
            "FORMAT",
            "--format",
            help="Format to print: text, json, croissant (version 1.0) or prov (PROV-JSON).",
        ),
    ] = "text",
    property_: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "--property",
            help="Property of the Croissant metadata, such as license=CC0-1.0; repeatable.  "
            "[default: none]",
        ),
    ] = None,
    html: Annotated[
        str | None,
        option("FILE", help="Page to write, with a picture of the family tree. [default: none]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the runs, shards, documents and sources behind a checkpoint, with their sums.

    Inputs are recognised by the fingerprints in manifests. They are looked for at the paths in run
    files, next to the run, and in --search.
    """
    if as_json and format_ not in ("text", "json"):
        raise ConfigError(f"lineage --json: leave it out, because --format {format_} is JSON too")
    if property_ and format_ != "croissant":
        raise ConfigError("lineage --property: needs --format croissant; add it")
    from trainrig.evaluate.data_lineage import render_lineage, trace_lineage
    from trainrig.evaluate.lineage.croissant_metadata import read_properties

    given = read_properties(property_ or [])

    root = trace_lineage(checkpoint, search or (), verify)
    if html is not None:
        from trainrig.evaluate.lineage.family_page import render_family_page

        storage.write(html, render_family_page(root).encode())
    if format_ == "text" and not as_json:
        print("\n".join(render_lineage(root)))
        if html is not None:
            print(html)
    else:
        print(json.dumps(_build_document(root, format_, given)))


def _build_document(
    root: "LineageNode", format_: Format, properties: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON object of a family tree in a format; warn if Croissant needs more values."""
    if format_ == "prov":
        from trainrig.evaluate.lineage.provenance_record import build_provenance

        return build_provenance(root)
    if format_ != "croissant":
        return root.to_json()
    from trainrig.evaluate.lineage.croissant_metadata import REQUIRED, build_croissant

    document = build_croissant(root, properties)
    if missing := [name for name in REQUIRED if name not in document]:
        names = " ".join(f"--property {name}=…" for name in missing)
        print(f"Croissant requires {len(missing)} more properties: {names}", file=sys.stderr)
    return document
