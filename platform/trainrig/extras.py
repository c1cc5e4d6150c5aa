"""Loading of the parts that live outside the core, in the package `trainrig_contrib`.

The core never imports that package by a statement, so the core can be read, installed and run
without it. `load_extra` is the only place where it is loaded.
"""

import importlib
from types import ModuleType

from trainrig.errors import ConfigError

EXTRAS = "trainrig_contrib"


def load_extra(module: str, what: str) -> ModuleType:
    """Return the module `module` of the extras, which `what` needs.

    Raises ConfigError if the package of extras is not installed.
    """
    try:
        importlib.import_module(EXTRAS)
    except ModuleNotFoundError:
        raise ConfigError(
            f"{what} needs the package {EXTRAS}, which is not installed; "
            "install trainrig from its wheel or its repository, which contain both packages"
        ) from None
    return importlib.import_module(f"{EXTRAS}.{module}")
