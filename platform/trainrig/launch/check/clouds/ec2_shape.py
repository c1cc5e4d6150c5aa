"""JSON schema of the request that starts an EC2 instance, built from botocore's model.

AWS checks the request against that model only minutes later, when Ray's autoscaler on the head
makes it. Ray's schema does not look into `node_config`, so a typo there would give a cluster that
never grows, with the reason in a log of the head.
"""

import functools
from typing import Any

SERVICE = "ec2"
REQUEST = "RunInstancesRequest"
# Key of Ray: a list of subnets, of which each node gets the first with free addresses.
OF_RAY = {"SubnetIds": {"type": "array", "items": {"type": "string"}, "minItems": 1}}
# Ray overwrites these keys, so a value in the file would be lost
SET_BY_RAY = {"MinCount", "MaxCount", "SubnetId", "DryRun"}

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
    """Return the schema of `node_config` of an AWS node type. Reading the model takes a second."""
    import botocore.session

    model = botocore.session.get_session().get_service_model(SERVICE)
    schema = _convert_to_schema(model.shape_for(REQUEST))
    known = {
        name: member for name, member in schema["properties"].items() if name not in SET_BY_RAY
    }
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
