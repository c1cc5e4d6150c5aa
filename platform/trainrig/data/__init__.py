"""Steps of trainrig for your own pipelines on Ray Data.

`read_pages` opens web archives and other files as a `ray.data.Dataset`, with one row for each
record. The operators are arguments of `Dataset.map_batches`, and take and give Arrow tables. A
`SplitSink` writes a file for each split, whose bytes do not depend on workers or failures.

>>> import ray
>>> from trainrig import data
>>> pages = data.read_pages("crawl/*.warc.gz", source="crawl")
>>> documents = (
...     pages.map_batches(data.Extract(), batch_format="pyarrow")
...     .map_batches(data.Language(), batch_format="pyarrow")
...     .map_batches(data.Measure(), batch_format="pyarrow")
... )
>>> documents.write_datasink(data.SplitSink("documents"))

The columns are those that the stages write, to the byte: `curate` measures pages by the same
operators. An operator checks its settings when it is built, and works without Ray on any Arrow
table. A class is an argument too, with its settings as the constructor's keyword arguments; it then
lives in the actors of the pool that you choose.

The names are imported at first use, so that operators need no Ray.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainrig.corpus.operators.decision_operators import Judge, Sign
    from trainrig.corpus.operators.page_operators import Extract, MatchUrls
    from trainrig.corpus.operators.text_operators import (
        Classify,
        Language,
        MaskPersonalData,
        Measure,
        Rewrite,
    )
    from trainrig.data.page_source import read_pages
    from trainrig.data.split_sink import SplitSink
    from trainrig.evaluate.engine.embed_operator import Embed
    from trainrig.tokens.tokenize_operator import Tokenize

__all__ = [
    "Classify",
    "Embed",
    "Extract",
    "Judge",
    "Language",
    "MaskPersonalData",
    "MatchUrls",
    "Measure",
    "Rewrite",
    "Sign",
    "SplitSink",
    "Tokenize",
    "read_pages",
]

# Module of each public name, below `trainrig`.
_MODULES = {
    "corpus.operators.decision_operators": ("Judge", "Sign"),
    "corpus.operators.page_operators": ("Extract", "MatchUrls"),
    "corpus.operators.text_operators": (
        *("Classify", "Language", "MaskPersonalData", "Measure", "Rewrite"),
    ),
    "data.page_source": ("read_pages",),
    "data.split_sink": ("SplitSink",),
    "evaluate.engine.embed_operator": ("Embed",),
    "tokens.tokenize_operator": ("Tokenize",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainrig.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
