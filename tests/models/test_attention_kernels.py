"""Attention kernels in docs/attention.md, compared with those called on a CPU."""

import pytest
import torch
from support.attention_kernels import CASES, Kernels, called, decoder, documented, packed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_are_those_that_the_page_names(case, kv_heads, dtype):
    assert [called(case, "cpu", dtype, kv_heads)] == documented()[case]["CPU"]


def test_the_page_has_no_other_rows():
    assert documented().keys() == CASES.keys()


@pytest.mark.parametrize("setting", [{"logit_cap": 5.0}, {"sinks": True}])
def test_caps_and_sinks_are_read_in_blocks(setting):
    model = decoder(2, attention=setting)
    arguments = packed(100)
    with torch.no_grad(), Kernels() as kernels:
        model(**arguments)
    assert kernels.found == {"in blocks"}
