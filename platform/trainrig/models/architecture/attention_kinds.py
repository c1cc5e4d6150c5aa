"""The union of all kinds of attention; add a new kind here."""

from typing import Annotated

from pydantic import Field

from trainrig.config.field_marks import FitsSeveral, assume_kind
from trainrig.models.architecture.attention import AttentionSettings
from trainrig.models.architecture.gated_attention import GatedAttention

AttentionKind = Annotated[
    AttentionSettings | GatedAttention,
    Field(discriminator="kind"),
    assume_kind("Attention"),
    FitsSeveral(),
]
