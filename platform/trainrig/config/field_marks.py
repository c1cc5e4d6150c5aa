"""Annotations for fields of run files: not in the fingerprint, extendable, path role, `kind`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BeforeValidator


@dataclass(frozen=True)
class NotIdentity:
    """Mark on a field that a run's result does not depend on, such as a path or worker count.

    A text field with this mark is a path. The path is an input, unless the mark is OUTPUT or CACHE.
    """

    name: str = "NOT_IDENTITY"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Extendable:
    """Mark on a field that may be changed while its run is not finished."""

    def __repr__(self) -> str:
        return "EXTENDABLE"


NOT_IDENTITY = NotIdentity()
OUTPUT = NotIdentity("OUTPUT")  # a folder that the run writes
CACHE = NotIdentity("CACHE")  # a folder on the local machine, made where it is missing
EXTENDABLE = Extendable()
SHIPPED = NotIdentity("SHIPPED")  # a file that `submit` copies to where the cluster reads it


@dataclass(frozen=True)
class AddedLater:
    """Mark on a field that an older version lacks and computes the default of.

    While the field has its default, it is left out of what identifies a run. So a run that an older
    version began can be resumed.
    """

    def __repr__(self) -> str:
        return "ADDED_LATER"


ADDED_LATER = AddedLater()


@dataclass(frozen=True)
class FitsSeveral:
    """Mark on a union whose tables may leave `kind` out.

    The JSON schema of the union then uses `anyOf`, as a table may match several members, in place
    of pydantic's `oneOf`.
    """

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        made = dict(handler(schema))
        if "oneOf" in made:
            made["anyOf"] = made.pop("oneOf")
        return made


def assume_kind(kind: str) -> BeforeValidator:
    """Return a validator of a union that sets `kind` in tables that leave `kind` out."""

    def settle(given: Any) -> Any:
        if isinstance(given, Mapping) and "kind" not in given:
            return {"kind": kind, **given}
        return given

    return BeforeValidator(settle)
