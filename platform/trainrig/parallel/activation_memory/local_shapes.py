"""Sizes of one device's part of each layer under tensor and expert parallelism."""

from dataclasses import replace
from functools import cache

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.architecture.shapes import (
    DecoderShapes,
    FeedForwardShape,
    LayerShape,
    MixtureShape,
)


@cache
def cut_model(model: DecoderConfig, tensor: int, expert: int) -> DecoderConfig:
    """Return the config of one device's part of `model`, with `tensor` and `expert` parallel ranks.

    The number of active experts per token is unchanged: tokens of this device go to experts
    elsewhere, and tokens of other devices come in their place.
    """
    shape = model.shape
    mixture = model.feedforward
    narrow: dict[str, object] = {
        "heads": shape.heads // tensor,
        # with fewer key heads than devices, each device computes one
        "kv_heads": max(1, shape.kv_heads // tensor),
        "head_channels": shape.head_channels,
        "feedforward_channels": shape.feedforward_channels // tensor,
        "vocabulary": shape.vocabulary // tensor,
    }
    if isinstance(mixture, MixtureOfExperts):
        between = (mixture.expert_channels or shape.feedforward_channels) // tensor
        narrow["feedforward"] = mixture.model_copy(
            update={"experts": mixture.experts // expert, "expert_channels": between}
        )
    return model.model_copy(update=narrow)


@cache
def cut_shapes(model: DecoderConfig, tensor: int, expert: int) -> DecoderShapes:
    """Return the shapes of every matrix of `cut_model`, with the router of the whole model."""
    local = cut_model(model, tensor, expert).shapes
    if expert == 1:
        return local
    layers = tuple(
        _with_router(mine, whole)
        for mine, whole in zip(local.layers, model.shapes.layers, strict=True)
    )
    return replace(local, layers=layers)


def _with_router(mine: LayerShape, whole: LayerShape) -> LayerShape:
    part = mine.feedforward
    of_whole = whole.feedforward
    if isinstance(part, FeedForwardShape) or isinstance(of_whole, FeedForwardShape):
        return mine
    router = replace(part, router=of_whole.router, balance_bias=of_whole.balance_bias)
    assert isinstance(router, MixtureShape)
    return replace(mine, feedforward=router)
