"""The special tokens that an objective needs of a tokenizer."""

from collections.abc import Sequence

from trainrig.errors import DataError
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special import find_named, sentinel


def need_tokens(encoder: Encoder, kind: str, wanted: Sequence[Sequence[str]]) -> list[int]:
    """The id of each special token that objective `kind` needs, of which `wanted` has the names
    that it may have, ours first.

    Raises DataError, which says how to add those that `encoder` lacks.
    """
    found = [find_named(encoder.special_ids, names) for names in wanted]
    lacking = [names[0] for names, number in zip(wanted, found, strict=True) if number is None]
    if lacking:
        raise _lacking(encoder, kind, ", ".join(lacking), f"extra = {_toml(lacking)}", lacking)
    return [number for number in found if number is not None]


def need_sentinels(encoder: Encoder, kind: str, count: int) -> list[int]:
    """The ids of <extra_id_0> and so on, `count` of them. Raises DataError as `need_tokens`."""
    names = [sentinel(number) for number in range(count)]
    there = encoder.special_ids
    lacking = [name for name in names if name not in there]
    if lacking:
        what = lacking[0] if len(lacking) == 1 else f"{lacking[0]} to {lacking[-1]}"
        raise _lacking(encoder, kind, what, f"sentinels = {count}", lacking)
    return [there[name] for name in names]


def _lacking(
    encoder: Encoder, kind: str, what: str, setting: str, lacking: Sequence[str]
) -> DataError:
    more = " …" if len(lacking) > 1 else ""
    return DataError(
        f"{encoder.files.where}: no special token {what}, which objective {kind} needs; train a "
        f"tokenizer with `{setting}` and tokenize again, or add to a model that is there with "
        f"`trainrig import … --add-token '{lacking[0]}'{more}` (a row of its embedding for each) "
        "and tokenize with its tokenizer"
    )


def _toml(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
