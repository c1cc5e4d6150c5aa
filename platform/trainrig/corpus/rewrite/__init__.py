"""What changes a text rather than judging it.

A rewrite has `columns`, the names of the counts of what it changed, and
`apply(text, language) -> (text, counts)`: the same for the same text, whoever asks. A new one: a
file beside this, and its name in `Rewrite`. Masking of personal data (`rewrite.pii`) stands apart,
as it tells where it masked.
"""

from typing import Annotated

from pydantic import Field

from trainrig.corpus.rewrite.c4 import C4Lines
from trainrig.corpus.rewrite.normalise import Normalise
from trainrig.corpus.rewrite.refinedweb import RefinedWebLines
from trainrig.corpus.rewrite.unicode import RepairUnicode

__all__ = ["C4Lines", "Normalise", "RefinedWebLines", "RepairUnicode", "Rewrite"]

Rewrite = Annotated[
    RepairUnicode | Normalise | C4Lines | RefinedWebLines,
    Field(discriminator="kind"),
]
