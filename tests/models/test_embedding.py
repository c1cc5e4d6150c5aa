import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainrig.models.layer_parts import Embedding, add_gradients


def compute_gradients(table: Embedding, ids: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    table(ids).backward(gradient.to(table.weight.dtype))
    return table.weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_id_gets_its_row(dtype):
    table = Embedding(7, 3).to(dtype)
    ids = torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(table(ids), table.weight[ids])


def test_float32_gradients_equal_torchs_bit_exactly():
    table = Embedding(11, 5)
    ids = torch.randint(11, (4, 30))
    gradient = torch.randn(4, 30, 5)
    weight = table.weight.detach().clone().requires_grad_()
    F.embedding(ids, weight).backward(gradient)
    assert torch.equal(compute_gradients(table, ids, gradient), weight.grad)


def test_a_token_that_comes_up_a_thousand_times_gets_the_gradients_of_all_of_them():
    table = Embedding(3, 2).to(torch.bfloat16)
    ids = torch.tensor([1] * 1024 + [2])
    # A bfloat16 sum of ones would stop at 256.
    gradients = compute_gradients(table, ids, torch.ones(1025, 2))
    assert gradients.dtype == torch.bfloat16
    assert gradients.tolist() == [[0, 0], [1024, 1024], [1, 1]]


class Called(TorchDispatchMode):
    """Records the kernels that are called, with the dtype of their first argument."""

    def __init__(self):
        super().__init__()
        self.kernels = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor):
            self.kernels[func.overloadpacket.__name__] = args[0].dtype
        return func(*args, **(kwargs or {}))


def test_on_a_gpu_they_are_added_by_the_kernel_that_sorts_and_in_float32():
    with FakeTensorMode(), Called() as called:  # needs no GPU, as only shapes are computed
        gradient = torch.empty(2, 5, 3, device="cuda", dtype=torch.bfloat16)
        total = add_gradients(gradient, torch.empty(2, 5, device="cuda", dtype=torch.long), 7)
    assert called.kernels["embedding_dense_backward"] == torch.float32
    assert (total.dtype, total.shape) == (torch.bfloat16, (7, 3))


def test_that_kernel_adds_as_we_do():
    gradient = torch.randint(-8, 8, (4, 30, 5)).float()
    ids = torch.randint(11, (4, 30))
    theirs = torch.ops.aten.embedding_dense_backward(gradient, ids, 11, -1, False)
    assert torch.equal(theirs, add_gradients(gradient, ids, 11))
