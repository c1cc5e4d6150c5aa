"""Marks on the fields of run files: not part of the fingerprint, extendable, the role of a path,
and what a table without a `kind` is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BeforeValidator


@dataclass(frozen=True)
class NotIdentity:
    """Marks a field that says where or on how much, not what: no part of a run's identity.

    A field of text marked so is a path, and an input unless OUTPUT or CACHE says otherwise.
    """

    name: str = "NOT_IDENTITY"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Extendable:
    """Marks a field that may be changed while its run is not finished."""

    def __repr__(self) -> str:
        return "EXTENDABLE"


NOT_IDENTITY = NotIdentity()
OUTPUT = NotIdentity("OUTPUT")  # a folder that the run writes
CACHE = NotIdentity("CACHE")  # a folder of this machine's own, made where it is missing
EXTENDABLE = Extendable()
SHIPPED = NotIdentity("SHIPPED")  # a file that `submit` copies to where the cluster reads it


@dataclass(frozen=True)
class FitsSeveral:
    """Marks a union whose tables may leave `kind` out: by its schema, one may fit several members,
    and not, as pydantic has it, exactly one."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        made = dict(handler(schema))
        if "oneOf" in made:
            made["anyOf"] = made.pop("oneOf")
        return made


def assume_kind(kind: str) -> BeforeValidator:
    """For a union whose tables may leave `kind` out: such a table is of this one."""

    def settle(given: Any) -> Any:
        if isinstance(given, Mapping) and "kind" not in given:
            return {"kind": kind, **given}
        return given

    return BeforeValidator(settle)
