"""Search for the tables of a run file that a misplaced key belongs to."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

NAMED = 3  # maximum number of places that a message names


def describe_places(model: type[BaseModel], key: str) -> str:
    """Return `; it belongs under [a.b]`, naming the tables of `model` that have `key`.

    At most NAMED tables are named, and the others are counted. The text is empty if no table has
    the key.
    """
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
    """Yield the places of `key` in `model` and its inner models.

    `above` are the enclosing models, so that a model that contains itself is visited only once.
    """
    if key in model.model_fields:
        yield f"under {at}" if at else "at the top level"
    for name, field in model.model_fields.items():
        for inner, form in _iterate_models(field.annotation):
            if inner not in (*above, model):
                table = form.format(f"{at.strip('[]')}.{name}".lstrip("."))
                yield from _find_places(inner, key, table, (*above, model))


def _iterate_models(annotation: Any, form: str = "[{}]") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield each model in a field's type, with the TOML form of its table's header."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, form
        return
    form = {tuple: "[[{}]]", dict: "[{}.NAME]"}.get(get_origin(annotation), form)
    for argument in get_args(annotation):
        yield from _iterate_models(argument, form)
