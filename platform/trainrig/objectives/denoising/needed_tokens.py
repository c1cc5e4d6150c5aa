"""Look-up of the special tokens that an objective needs."""

import itertools
from collections.abc import Sequence

from trainrig.errors import DataError
from trainrig.tokens.special_tokens import MODES, find_named, name_sentinel
from trainrig.tokens.tokenizers.encode import Encoder


def need_tokens(encoder: Encoder, kind: str, wanted: Sequence[Sequence[str]]) -> list[int]:
    """Return the id of each special token in `wanted`, which objective `kind` needs.

    `wanted` lists the possible names of each token, trainrig's own name first. Raises DataError for
    tokens that `encoder` lacks; the message says how to add them.
    """
    found = [find_named(encoder.special_ids, names) for names in wanted]
    lacking = [names[0] for names, number in zip(wanted, found, strict=True) if number is None]
    if lacking:
        what = ", ".join(lacking)
        setting = f"extra = {_format_toml(lacking)}"
        raise make_lack_error(encoder.files.where, kind, what, setting, lacking[0])
    return [number for number in found if number is not None]


def find_sentinels(encoder: Encoder) -> list[int]:
    """Return the ids of <extra_id_0>, <extra_id_1> and so on, up to the first missing one."""
    there = encoder.special_ids
    count = next(number for number in itertools.count() if name_sentinel(number) not in there)
    return [there[name_sentinel(number)] for number in range(count)]


def find_modes(encoder: Encoder, kind: str, modes: Sequence[str]) -> list[int]:
    """Return the id of the token of each of `modes` (R, S or X), which objective `kind` needs.

    Raises DataError as `need_tokens` does.
    """
    return need_tokens(encoder, kind, [MODES[mode] for mode in modes])


def check_sentinels(where: str, kind: str, there: int, needed: int) -> None:
    """Raise DataError if the tokenizer at `where` has fewer than `needed` sentinels."""
    if there < needed:
        last = name_sentinel(needed - 1)
        what = last if there == needed - 1 else f"{name_sentinel(there)} to {last}"
        raise make_lack_error(where, kind, what, f"sentinels = {needed}", name_sentinel(there))


def make_lack_error(where: str, kind: str, what: str, setting: str, first: str) -> DataError:
    """Make the error for a tokenizer at `where` that lacks the tokens `what`.

    `setting`: tokenizer setting that would add them. `first`: the first of them.
    """
    return DataError(
        f"{where}: the tokenizer has no special token {what}, which objective {kind} needs. Train "
        f"a tokenizer with `{setting}` and tokenize again; or add an embedding row for each token "
        f"to an existing model with `trainrig import … --add-token '{first}'`, and tokenize with "
        "its tokenizer"
    )


def _format_toml(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
