"""Settings of the feed-forward network of a layer."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings


class SwiGLU(Settings):
    """Feed-forward network of three matrices, gated by SiLU (Shazeer 2020, arXiv:2002.05202)."""

    kind: Literal["SwiGLU"] = "SwiGLU"


class GEGLU(Settings):
    """Feed-forward network of three matrices, gated by GELU (Shazeer 2020, arXiv:2002.05202)."""

    kind: Literal["GEGLU"] = "GEGLU"
    tanh: bool = True  # use the tanh approximation of GELU, as Gemma does


class GELU(Settings):
    """Feed-forward network of two matrices with GELU.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """

    kind: Literal["GELU"] = "GELU"
    tanh: bool = True  # use the tanh approximation of GELU, as GPT-2 does


class ReLU(Settings):
    """Feed-forward network of two matrices with ReLU, as in the first Transformer.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    kind: Literal["ReLU"] = "ReLU"


Network = SwiGLU | GEGLU | GELU | ReLU
GATED = (SwiGLU, GEGLU)


class MixtureOfExperts(Settings):
    """Mixture of experts: a router sends each token to `active` of `experts` networks.

    Sources: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961.
    """

    kind: Literal["MixtureOfExperts"] = "MixtureOfExperts"
    experts: int = Field(ge=2)  # number of expert networks in a layer
    active: int = Field(ge=1)  # number of experts that each token is sent to
    # Hidden width of an expert; None: feedforward_channels.
    expert_channels: int | None = Field(default=None, ge=1)
    network: Network = Field(default=SwiGLU(), discriminator="kind")  # kind of network of an expert
    # Scores of the experts: a softmax over all, or a sigmoid of each (DeepSeek-V3,
    # arXiv:2412.19437).
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True  # scale the scores of the chosen experts to a sum of 1
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # factor on the experts' outputs
    # Number of shared experts, which every token goes through as well (arXiv:2401.06066). They are
    # one network of their total width.
    shared_experts: int = Field(default=0, ge=0)
    # Number of first layers with a dense network instead of experts.
    dense_layers: int = Field(default=0, ge=0)
    # Most tokens that an expert takes, as a multiple of an even share of the micro-batch; later
    # tokens skip the expert; None: no limit.
    capacity: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Weight of the balance loss, experts * sum(share of tokens * mean score) (arXiv:2101.03961,
    # equation 4); 0: no balance loss.
    balance_loss: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    # Weight of the router z-loss, the mean square of the log of the sum of exponentials of the
    # router's logits (Zoph et al. 2022, arXiv:2202.08906, equation 5); 0: no z-loss.
    router_z_loss: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    # Balance experts by a learnt bias that is added to the scores for the choice only. Its gradient
    # is each expert's excess of tokens, so the optimizer moves it (Wang et al. 2024,
    # arXiv:2408.15664).
    balance_bias: bool = False

    @model_validator(mode="after")
    def _check_active(self) -> Self:
        if self.active > self.experts:
            raise ValueError(f"active ({self.active}) must be at most experts ({self.experts})")
        return self


FeedForward = Annotated[Network | MixtureOfExperts, Field(discriminator="kind")]
