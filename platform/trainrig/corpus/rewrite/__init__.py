"""Rewrites: steps that change a text instead of deciding about it.

A rewrite has `columns`, the names of the counts of its changes, and `apply(text, language) ->
(text, counts)`, which depends on its arguments alone. To add one, write a module beside this one
and add its class to `Rewrite`. Masking of personal data (`rewrite.pii`) is separate, as it also
reports where it masked.
"""

from typing import Annotated

from pydantic import Field

from trainrig.corpus.rewrite.c4_line_rules import C4Lines
from trainrig.corpus.rewrite.characters import Normalise, RepairUnicode
from trainrig.corpus.rewrite.refinedweb_line_rules import RefinedWebLines

__all__ = ["C4Lines", "Normalise", "RefinedWebLines", "RepairUnicode", "Rewrite"]

Rewrite = Annotated[
    RepairUnicode | Normalise | C4Lines | RefinedWebLines,
    Field(discriminator="kind"),
]
