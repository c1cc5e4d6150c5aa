"""The columns of docs/performance.md on which kernel computes attention, held to a GPU."""

import pytest
import torch
from tests.models.attention_kernels import CASES, called, documented

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]

COLUMNS = {
    "GPU, bfloat16": (torch.bfloat16, False),
    "GPU, bfloat16, deterministic": (torch.bfloat16, True),
    "GPU, float32": (torch.float32, False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("column", COLUMNS)
def test_kernels_are_those_that_the_page_names(case, kv_heads, column):
    said = documented()[case][column]
    dtype, deterministic = COLUMNS[column]
    torch.use_deterministic_algorithms(deterministic)
    try:
        found = called(case, "cuda", dtype, kv_heads)
    finally:
        torch.use_deterministic_algorithms(False)
    if kv_heads < 4 and {"memory-efficient"} in said:  # which may take no grouped queries
        said.append({"plain products"})
    assert found in said or not said
