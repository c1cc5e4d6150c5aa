"""The arithmetic of trainrig's kernel, by a stand-in for Triton; tests/gpu runs it by Triton."""

import pytest
import torch
from gpu.attention_rows import ROWS, Rows
from support import kernel_stand_ins

from trainrig.errors import ConfigError

SMALL = Rows(rows=2, heads=4, kv_heads=2, queries=40, keys=40, width=16, mean=15)


@pytest.mark.parametrize("given", [SMALL, *(row for row in ROWS if row.width <= 32)])
def test_the_kernel_equals_plain_products(given, kernels):
    drawn = given.draw("cpu", torch.float32)
    whole = drawn.attend_plainly(torch.float64)
    for found, exact in zip(drawn.attend("triton"), whole, strict=True):
        assert (found - exact).norm() <= 2e-6 * exact.norm()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("part", range(3))
def test_nan_propagates_only_to_what_depends_on_it(part, sinks, kernels):
    """Put NaN into a query, a key or a value; it reaches exactly what depends on it."""
    drawn = Rows(queries=32, keys=32, width=16, sinks=sinks).draw("cpu", torch.float32)
    documents = (torch.arange(32)[None] >= 16).long()
    vars(drawn)["documents"] = documents
    place = 20
    drawn.parts[part][0, 0, place, 3] = torch.nan
    seen, of_query, of_key, of_value, *_ = drawn.attend("triton")
    rows = slice(place, place + 1) if part == 0 else slice(place, 32)
    assert seen[0, 0, rows].isnan().any(-1).all()
    assert of_query[0, 0, rows].isnan().any(-1).all()
    if part < 2:
        assert of_key[0, 0, 16 : place + 1].isnan().any()
    if part == 0:  # the keys of the query's document get gradients from it
        assert of_value[0, 0, 16 : place + 1].isnan().any(-1).all()
        assert not seen[0, 0, :place].isnan().any()
        assert not of_value[0, 0, :16].isnan().any()


def test_a_kernel_that_does_not_fit_on_the_card_is_reported_in_one_line(kernels, monkeypatch):
    drawn = SMALL.draw("cpu", torch.float32)
    for name in ("_attend", "_differentiate_keys"):
        monkeypatch.setattr(kernel_stand_ins, "FAILING", {name})
        with pytest.raises(
            ConfigError, match=rf"^training.attention.kernel = 'triton': {name} "
        ) as error:
            drawn.attend("triton")
        assert "Required: 106496" in str(error.value)
        assert "'auto'" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("limit", [101_376, 60_000])
def test_smaller_tiles_give_the_same_within_rounding(limit, monkeypatch):
    given = Rows(width=200, queries=70, keys=70, cap=3.0, mean=40)
    card = kernel_stand_ins.Card((8, 6), limit, is_triton_installed=True)
    with kernel_stand_ins.stand_in(monkeypatch, card):
        drawn = given.draw("cpu", torch.float32)
        whole = drawn.attend_plainly(torch.float64)
        for found, exact in zip(drawn.attend("triton"), whole, strict=True):
            assert (found - exact).norm() <= 2e-6 * exact.norm()
