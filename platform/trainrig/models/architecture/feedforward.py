"""What a layer does to each token by itself."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings


class SwiGLU(Settings):
    """Gated by SiLU: three matrices (Shazeer 2020, arXiv:2002.05202)."""

    kind: Literal["SwiGLU"] = "SwiGLU"


class GEGLU(Settings):
    """Gated by GELU: three matrices (Shazeer 2020, arXiv:2002.05202)."""

    kind: Literal["GEGLU"] = "GEGLU"
    tanh: bool = True  # whether GELU is its tanh approximation, as Gemma's


class GELU(Settings):
    """Two matrices, GELU between (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""

    kind: Literal["GELU"] = "GELU"
    tanh: bool = True  # whether GELU is its tanh approximation, as GPT-2's


class ReLU(Settings):
    """Two matrices, ReLU between: the first Transformer's (arXiv:1706.03762)."""

    kind: Literal["ReLU"] = "ReLU"


Network = SwiGLU | GEGLU | GELU | ReLU
GATED = (SwiGLU, GEGLU)


class MixtureOfExperts(Settings):
    """Each token through `active` of `experts` networks, which a router chooses for it (Shazeer et
    al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961)."""

    kind: Literal["MixtureOfExperts"] = "MixtureOfExperts"
    experts: int = Field(ge=2)  # networks of a layer
    active: int = Field(ge=1)  # networks that each token goes through
    # Width of an expert; None: feedforward_channels.
    expert_channels: int | None = Field(default=None, ge=1)
    network: Network = Field(default=SwiGLU(), discriminator="kind")  # what an expert is
    # Score of an expert: its share among all, or each by itself (DeepSeek-V3, arXiv:2412.19437).
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True  # whether the scores of the chosen experts are made to add up to 1
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # factor on what experts give
    # Experts that every token goes through beside (arXiv:2401.06066), as one network as wide.
    shared_experts: int = Field(default=0, ge=0)
    dense_layers: int = Field(default=0, ge=0)  # first layers that have one network, as without
    # Most tokens an expert takes, in even shares of a micro-batch; what comes later in it passes it
    # by. None: all that are sent to it.
    capacity: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Weight of experts * sum(share of tokens * mean score) (arXiv:2101.03961, equation 4); 0: none.
    balance_loss: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    # Weight of the mean square of the log of the sum of exponentials of the router's logits
    # (Zoph et al. 2022, arXiv:2202.08906, equation 5); 0: none.
    router_z_loss: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    # Whether a learnt vector is added to the scores for the choice alone, with each expert's excess
    # of tokens as its gradient (Wang et al. 2024, arXiv:2408.15664): the optimizer moves it.
    balance_bias: bool = False

    @model_validator(mode="after")
    def _check_active(self) -> Self:
        if self.active > self.experts:
            raise ValueError(f"active ({self.active}) is above experts ({self.experts})")
        return self


FeedForward = Annotated[Network | MixtureOfExperts, Field(discriminator="kind")]
