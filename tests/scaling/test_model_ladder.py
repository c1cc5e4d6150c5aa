"""Decoders of a sweep: requested sizes, sensible shapes, and counts without building a model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, count_parameters
from trainrig.scaling.model_ladder import (
    LARGEST,
    NEARNESS,
    SMALLEST,
    compute_aspect,
    compute_std_by_width,
    find_ladder_model,
    find_ladder_model_of,
)

SIZES = st.floats(math.log(SMALLEST), math.log(LARGEST)).map(math.exp)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_a_rung_has_what_was_asked_for_to_two_percent(parameters: float) -> None:
    found = find_ladder_model(parameters, vocabulary=1024)
    assert abs(found.parameters / parameters - 1) <= 0.02


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_a_rung_has_the_proportions_of_practice(parameters: float) -> None:
    model = find_ladder_model(parameters, vocabulary=1024).model
    shape = model.shape
    assert shape.layers >= 2
    assert 0.4 < shape.channels / shape.layers / compute_aspect(parameters) < 2.5
    assert 1.7 < shape.feedforward_channels / shape.channels < 4.1
    assert shape.head_channels in (16, 32, 64)
    assert shape.channels % (64 if shape.channels >= 384 else 16) == 0
    assert shape.feedforward_channels % (64 if shape.channels >= 384 else 4) == 0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("parameters", [30_000, 300_000, 1e6])
def test_counts_are_those_of_the_module(parameters: float, tied: bool) -> None:
    found = find_ladder_model(parameters, vocabulary=640, tie_embeddings=tied)
    with torch.device("meta"):
        module = Decoder(found.model)
    assert found.total == sum(parameter.numel() for parameter in module.parameters())
    of_layers = sum(parameter.numel() for parameter in module.layers.parameters())
    assert found.parameters == of_layers + found.model.channels
    assert found.embedding_parameters == (1 if tied else 2) * 640 * found.model.channels


def test_fresh_weights_spread_by_the_width() -> None:
    assert compute_std_by_width(1_000) == 0.02
    narrow, wide = (
        find_ladder_model(parameters, vocabulary=1024).model for parameters in (2e4, 1e9)
    )
    assert narrow.initial_std == pytest.approx(math.sqrt(0.4 / narrow.shape.channels), rel=1e-3)
    assert wide.initial_std < 0.02 < narrow.initial_std


def test_a_ladder_climbs() -> None:
    sizes = np.geomspace(SMALLEST, LARGEST, 16)
    counts = [find_ladder_model(size, vocabulary=1024).parameters for size in sizes]
    assert counts == sorted(counts)
    assert counts[0] == pytest.approx(SMALLEST, rel=0.02)
    assert counts[-1] == pytest.approx(LARGEST, rel=0.02)


@pytest.mark.parametrize("parameters", [7e9, 7e10, 4e11, 1e12])
def test_plans_may_ask_for_more_than_a_sweep(parameters: float) -> None:
    found = find_ladder_model(parameters, vocabulary=128_256)
    assert found.parameters == pytest.approx(parameters, rel=0.01)
    assert found.total == count_parameters(found.model).total


@pytest.mark.parametrize("parameters", [4_999, 0, -1.0, math.nan])
def test_too_small_a_decoder_is_refused(parameters: float) -> None:
    with pytest.raises(ConfigError, match="the least: 5,000"):
        find_ladder_model(parameters, vocabulary=1024)


@pytest.mark.parametrize("kind", ["Decoder", "Encoder", "EncoderDecoder"])
@pytest.mark.parametrize("asked", [30_000, 60_000, 240_000, 1e6, 1e8])
def test_models_of_other_kinds_have_the_parameters_asked_for(kind: str, asked: float) -> None:
    found = find_ladder_model_of(kind, asked, vocabulary=4_096, positions=256)
    assert found.model.kind == kind
    assert abs(found.parameters / asked - 1) < NEARNESS
    counted = count_parameters(found.model)
    assert (found.parameters, found.total) == (counted.layers, counted.total)
    assert found.model.tie_embeddings
