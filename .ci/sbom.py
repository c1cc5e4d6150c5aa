"""Print the installed packages as a software bill of materials: CycloneDX 1.6, in JSON.

The list holds what this Python's environment has, and which package needs which. Equal environments
give equal bytes.
"""

import json
import re
import sys
import uuid
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

ROOT = "trainrig"


def normalise(name: str) -> str:
    """Return a package's name as package URLs write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def describe(found: metadata.Distribution, kind: str = "library") -> dict[str, Any]:
    """Return the component of an installed package."""
    name = normalise(found.metadata["Name"])
    url = f"pkg:pypi/{name}@{found.version}"
    component = {"type": kind, "bom-ref": url, "name": name, "version": found.version, "purl": url}
    about = found.metadata
    if expression := about.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    elif classes := [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]:
        names = sorted({one.rpartition(" :: ")[2] for one in classes})
        component["licenses"] = [{"license": {"name": name}} for name in names]
    return component


def list_needed(found: metadata.Distribution) -> set[str]:
    """Return the names of the packages that an installed package needs, without its extras."""
    needed = map(Requirement, found.requires or ())
    return {
        normalise(one.name)
        for one in needed
        if one.marker is None or one.marker.evaluate({"extra": ""})
    }


def build() -> dict[str, Any]:
    """Return the bill of materials of this environment."""
    # The first of two distributions of one name is the one that Python imports.
    found: dict[str, metadata.Distribution] = {}
    for one in metadata.distributions():
        found.setdefault(normalise(one.metadata["Name"]), one)
    parts = {name: describe(found[name]) for name in sorted(found)}
    root = describe(found[ROOT], "application")
    del parts[ROOT]
    references = {name: part["bom-ref"] for name, part in (parts | {ROOT: root}).items()}
    needed = [
        {
            "ref": reference,
            "dependsOn": sorted(references[n] for n in list_needed(found[name]) if n in found),
        }
        for name, reference in sorted(references.items())
    ]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([list(parts.values()), needed]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": root},
        "components": list(parts.values()),
        "dependencies": needed,
    }


if __name__ == "__main__":
    json.dump(build(), sys.stdout, indent=1)
    print()
