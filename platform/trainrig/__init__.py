"""trainrig: raw web pages to an aligned language model on an elastic Ray cluster.

`import trainrig` offers the stages as functions, and opens what they wrote:

>>> import trainrig
>>> documents = trainrig.curate("curate.toml")
>>> trainrig.open_documents(documents).kept(["url", "text"]).to_pandas()

`trainrig.data` has the steps of the stages as operators for pipelines on Ray Data.

The names are imported at first use, because torch, Ray and Arrow take seconds. The page
`docs/library.md` is the guide, and `docs/reference/api.md` describes each name.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from trainrig import data
    from trainrig.errors import (
        ClusterError,
        ConfigError,
        DataError,
        InputError,
        OutputTaken,
        TrainrigError,
        Unfinished,
    )
    from trainrig.python_api.hub_models import ModelFolder, export_model, import_model
    from trainrig.python_api.laws_and_plans import FitResult, PlanResult, fit, plan
    from trainrig.python_api.loaded_model import LoadedModel, load
    from trainrig.python_api.opened_data import (
        OpenedDocuments,
        OpenedTokens,
        open_documents,
        open_index,
        open_tokens,
    )
    from trainrig.python_api.opened_run import OpenedRun, open_run
    from trainrig.python_api.stages import (
        StageOutput,
        curate,
        encode_conversations,
        evaluate,
        posttrain,
        pretrain,
        rl,
        sweep,
        tokenize,
        train_tokenizer,
    )

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "FitResult",
    "InputError",
    "LoadedModel",
    "ModelFolder",
    "OpenedDocuments",
    "OpenedRun",
    "OpenedTokens",
    "OutputTaken",
    "PlanResult",
    "StageOutput",
    "TrainrigError",
    "Unfinished",
    "__version__",
    "curate",
    "data",
    "encode_conversations",
    "evaluate",
    "export_model",
    "fit",
    "import_model",
    "load",
    "open_documents",
    "open_index",
    "open_run",
    "open_tokens",
    "plan",
    "posttrain",
    "pretrain",
    "rl",
    "sweep",
    "tokenize",
    "train_tokenizer",
]

# Module of each public name, below `trainrig`.
_MODULES = {
    "errors": (
        *("ClusterError", "ConfigError", "DataError", "InputError", "OutputTaken"),
        *("TrainrigError", "Unfinished"),
    ),
    "python_api.hub_models": ("ModelFolder", "export_model", "import_model"),
    "python_api.laws_and_plans": ("FitResult", "PlanResult", "fit", "plan"),
    "python_api.loaded_model": ("LoadedModel", "load"),
    "python_api.opened_data": (
        *("OpenedDocuments", "OpenedTokens", "open_documents", "open_index", "open_tokens"),
    ),
    "python_api.opened_run": ("OpenedRun", "open_run"),
    "python_api.stages": (
        *("StageOutput", "curate", "encode_conversations", "pretrain", "sweep", "tokenize"),
        "train_tokenizer",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
# Verbs that share their name with the folder of their code, so the folder can be called.
_VERB_FOLDERS = ("evaluate", "posttrain", "rl")


class _PickledByName(ModuleType):
    """Module that is pickled by its name, as Ray pickles the modules that a function uses."""

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


class _VerbFolder(_PickledByName):
    """Folder of the package that runs the stage of the same name when it is called."""

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        doc: str | None = self._find_stage().__doc__
        return doc

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(self._find_stage())

    def __call__(self, *arguments: Any, **keys: Any) -> Any:
        return self._find_stage()(*arguments, **keys)

    def _find_stage(self) -> Any:
        stages = importlib.import_module(f"{__name__}.python_api.stages")
        return getattr(stages, self.__name__.rpartition(".")[2])


class _Package(_PickledByName):
    """The package itself, which makes the folders of verbs callable once they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VERB_FOLDERS and isinstance(value, ModuleType):
            value.__class__ = _VerbFolder
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in (*_VERB_FOLDERS, "data"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
