"""Finds where in a run file a misplaced key belongs."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

NAMED = 3  # places at most


def describe_places(model: type[BaseModel], key: str) -> str:
    """`; it belongs under [a.b]`, with all places in `model` that have `key`; empty without one."""
    found = sorted(
        set(_find_places(model, key, "", ())), key=lambda place: (place.count("."), place)
    )
    if not found:
        return ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"; it belongs {' or '.join(found[:NAMED])}{more}"


def _find_places(
    model: type[BaseModel], key: str, at: str, above: tuple[type[BaseModel], ...]
) -> Iterator[str]:
    """`above` are the models on the way, so that one that holds itself is looked at once."""
    if key in model.model_fields:
        yield f"under {at}" if at else "at the top level"
    for name, field in model.model_fields.items():
        for inner, form in _iterate_models(field.annotation):
            if inner not in (*above, model):
                table = form.format(f"{at.strip('[]')}.{name}".lstrip("."))
                yield from _find_places(inner, key, table, (*above, model))


def _iterate_models(annotation: Any, form: str = "[{}]") -> Iterator[tuple[type[BaseModel], str]]:
    """The models in a field's type, and how the header of their table is written."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, form
        return
    form = {tuple: "[[{}]]", dict: "[{}.NAME]"}.get(get_origin(annotation), form)
    for each in get_args(annotation):
        yield from _iterate_models(each, form)
