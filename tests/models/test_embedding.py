import pytest
import torch
import torch.nn.functional as F

from trainrig.models.embedding import Embedding


def slopes_of(table: Embedding, ids: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    table(ids).backward(slope.to(table.weight.dtype))
    return table.weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_id_gets_its_row(dtype):
    table = Embedding(7, 3).to(dtype)
    ids = torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(table(ids), table.weight[ids])


def test_in_float32_its_slopes_are_torchs_to_the_bit():
    table, ids = Embedding(11, 5), torch.randint(11, (4, 30))
    slope = torch.randn(4, 30, 5)
    weight = table.weight.detach().clone().requires_grad_()
    F.embedding(ids, weight).backward(slope)
    assert torch.equal(slopes_of(table, ids, slope), weight.grad)


def test_a_token_that_comes_up_a_thousand_times_gets_the_slopes_of_all_of_them():
    table = Embedding(3, 2).to(torch.bfloat16)
    ids = torch.tensor([1] * 1024 + [2])
    # Ones: a sum in bfloat16 would stay at 256 for ever.
    slopes = slopes_of(table, ids, torch.ones(1025, 2))
    assert slopes.dtype == torch.bfloat16
    assert slopes.tolist() == [[0, 0], [1024, 1024], [1, 1]]
