"""The kinds of attention. Add a new one to the union here."""

from typing import Annotated

from pydantic import Field

from trainrig.config.field_marks import FitsSeveral, without_kind
from trainrig.models.architecture.attention import AttentionSettings
from trainrig.models.architecture.gated_attention import GatedAttention

AttentionKind = Annotated[
    AttentionSettings | GatedAttention,
    Field(discriminator="kind"),
    without_kind("Attention"),
    FitsSeveral(),
]
