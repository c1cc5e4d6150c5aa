"""The lineage of a checkpoint as W3C PROV, in the PROV-JSON serialisation.

Outputs and inputs are entities, identified by the fingerprint of their contents. A stage is the
activity that used its inputs and generated its output. The version of trainrig is the agent.
(PROV-DM: https://www.w3.org/TR/prov-dm/, PROV-JSON: https://www.w3.org/submissions/prov-json/)
"""

import json
from collections.abc import Mapping
from typing import Any

from trainrig.evaluate.data_lineage import LineageNode

NAMESPACE = "urn:trainrig:"  # namespace that the prefix `trainrig` stands for


def build_provenance(root: LineageNode) -> dict[str, Any]:
    """Return the PROV-JSON document of a family tree."""
    entities: dict[str, Any] = {}
    activities: dict[str, Any] = {}
    agents: dict[str, Any] = {}
    generated: dict[str, Any] = {}
    used: dict[str, Any] = {}
    derived: dict[str, Any] = {}
    associated: dict[str, Any] = {}
    for node in root.list_distinct():
        entity = f"trainrig:{node.fingerprint}"
        entities[entity] = _describe_entity(node)
        if node.stage is None:
            continue
        activity = f"trainrig:run-{node.fingerprint}"
        agent = f"trainrig:version-{node.trainrig or 'unknown'}"
        activities[activity] = _describe_activity(node)
        agents[agent] = {
            "prov:type": {"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"},
            "prov:label": f"trainrig {node.trainrig or 'of an unknown version'}",
        }
        short = node.fingerprint
        generated[f"_:generated-{short}"] = {"prov:entity": entity, "prov:activity": activity}
        associated[f"_:associated-{short}"] = {"prov:activity": activity, "prov:agent": agent}
        for number, below in enumerate(node.inputs):
            source = f"trainrig:{below.fingerprint}"
            used[f"_:used-{short}-{number}"] = {
                "prov:activity": activity,
                "prov:entity": source,
                "prov:role": below.role,
            }
            derived[f"_:derived-{short}-{number}"] = {
                "prov:generatedEntity": entity,
                "prov:usedEntity": source,
                "prov:activity": activity,
            }
    return {
        "prefix": {"trainrig": NAMESPACE},
        "entity": entities,
        "activity": activities,
        "agent": agents,
        "wasGeneratedBy": generated,
        "used": used,
        "wasDerivedFrom": derived,
        "wasAssociatedWith": associated,
    }


def _describe_entity(node: LineageNode) -> dict[str, Any]:
    described: dict[str, Any] = {
        "prov:label": node.role,
        "trainrig:fingerprint": node.fingerprint,
        "trainrig:found": node.folder is not None,
        "trainrig:sums_verified": node.verified,
    }
    if node.folder is not None:
        described["prov:location"] = node.folder
    return described | _format_attributes(node.counts)


def _describe_activity(node: LineageNode) -> dict[str, Any]:
    versions = {f"version_{name}": version for name, version in node.versions.items()}
    return {"prov:label": node.stage, **_format_attributes({**node.settings, **versions})}


def _format_attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes in trainrig's namespace; a table becomes a string of JSON.

    A value of an attribute in PROV-JSON is a literal, and null is none.
    """
    return {
        f"trainrig:{name}": value if isinstance(value, str | int | float) else json.dumps(value)
        for name, value in values.items()
    }
