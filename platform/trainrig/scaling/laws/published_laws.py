"""Published scaling laws by name.

The table is `published_laws.toml`. The laws hold for their authors' tokenizer, data and recipe.
Their losses are not comparable with anyone else's, but the split of compute between size and tokens
roughly is. None has bootstrap draws, so plans made from them have no intervals.

The results depend on digits that the papers round away. Hoffmann et al. print their constants with
two digits: at 1e24 FLOPs the unrounded exponents give 62 tokens per parameter, the printed ones 98.
`hoffmann` has the unrounded constants, from the paper's sources as given by Besiroglu et al.;
`hoffmann-rounded` has the printed ones, for comparison with results that used them.
"""

from importlib import resources

from trainrig import config, storage
from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.scaling.laws.law import Law, read_law


class Sized(Settings):
    """Row of Hoffmann et al.'s tables: compute and tokens for which a size is optimal."""

    parameters: float
    approaches: tuple[tuple[float, float], ...]  # (FLOPs, tokens) for approaches 1, 2 and 3


class _Published(Settings):
    """Contents of `published_laws.toml`."""

    laws: tuple[Law, ...]
    hoffmann_sizes: tuple[Sized, ...]


_FILE = resources.files(__package__).joinpath("published_laws.toml").read_text()
_PUBLISHED = config.build(_Published, config.parse(_FILE, "published_laws.toml"), "laws")
LAWS = {law.name: law for law in _PUBLISHED.laws}
HOFFMANN_SIZES = _PUBLISHED.hoffmann_sizes
_WITHOUT_LOSS = {
    "llama3": "Llama 3's rule (D* = 0.29 C^0.53, arXiv:2407.21783, section 3.2.1) has no loss, and "
    "its printed constants give 1e13 tokens where the paper has 1.655e13"
}


def is_law_file(name: str) -> bool:
    """Return whether `name` is the path of a law.json, and not the name of a published law."""
    return name.endswith(".json") or "/" in name or storage.exists(name)


def find_law(name: str) -> Law:
    """Return the law in the file `name`, or the published law of that name.

    Raises DataError if there is no such file, and ConfigError, with the nearest name, if there is
    no such published law.
    """
    return read_law(name) if is_law_file(name) else find_published_law(name)


def find_published_law(name: str) -> Law:
    """Return the published law `name`.

    Raises ConfigError with the nearest name, or the reason why that law cannot be used.
    """
    if name in _WITHOUT_LOSS:
        raise ConfigError(f"{name}: {_WITHOUT_LOSS[name]}; use one of {', '.join(LAWS)}")
    if name not in LAWS:
        near = config.suggest_choice(name, LAWS)
        raise ConfigError(f"{name}: neither a law.json nor a published law{near}")
    return LAWS[name]
