"""The JSON schema of what EC2 takes to run an instance, made of botocore's model of the service.

It is what the request is checked against when it is made, minutes later and by Ray's autoscaler on
the head: `node_config` is opaque to Ray's schema, and a typo there would be a cluster that never
grows, with the reason in a log of the head.
"""

import functools
from typing import Any

SERVICE = "ec2"
REQUEST = "RunInstancesRequest"
# Ray's own: it takes one of them for each node, the first that has room.
OF_RAY = {"SubnetIds": {"type": "array", "items": {"type": "string"}, "minItems": 1}}
SET_BY_RAY = {"MinCount", "MaxCount", "SubnetId", "DryRun"}  # whatever a file says of them is lost

_SCALARS = {
    "boolean": "boolean",
    "integer": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "string": "string",
    "blob": "string",
    "timestamp": "string",
}


@functools.cache
def build_node_schema() -> dict[str, Any]:
    """What `node_config` of an AWS node type may hold. Reading the model takes about a second."""
    import botocore.session

    model = botocore.session.get_session().get_service_model(SERVICE)
    schema = _convert_to_schema(model.shape_for(REQUEST))
    known = {name: each for name, each in schema["properties"].items() if name not in SET_BY_RAY}
    schema["properties"] = known | OF_RAY
    schema.pop("required", None)
    return schema


def _convert_to_schema(shape: Any) -> dict[str, Any]:
    if shape.type_name == "structure":
        members = {name: _convert_to_schema(member) for name, member in shape.members.items()}
        schema = {"type": "object", "properties": members, "additionalProperties": False}
        return schema | ({"required": shape.required_members} if shape.required_members else {})
    if shape.type_name == "list":
        return {"type": "array", "items": _convert_to_schema(shape.member)}
    if shape.type_name == "map":
        return {"type": "object", "additionalProperties": _convert_to_schema(shape.value)}
    schema = {"type": _SCALARS[shape.type_name]}
    return schema | ({"enum": list(shape.enum)} if getattr(shape, "enum", None) else {})
