import math

import pytest
import torch
from torch import nn

from trainrig.parallel.mesh import build_mesh, find_local_device
from trainrig.parallel.sharding.fsdp import shard
from trainrig.parallel.training_statistics import ParameterNorms, group_parameters

NAMES = [
    "embedding.weight",
    "layers.0.attention_norm.weight",
    "layers.0.attention.query.weight",
    "layers.11.attention.output.weight",
    "layers.11.feedforward.up.weight",
    "norm.weight",
]


def test_a_parameter_is_of_its_layer_and_of_its_kind():
    assert group_parameters(NAMES) == {
        "kinds/embedding": [0],
        "layers/00": [1, 2],
        "kinds/norm": [1, 5],
        "kinds/attention": [2, 3],
        "layers/11": [3, 4],
        "kinds/feedforward": [4],
    }


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(2))

    def forward(self, x):
        return sum(layer(x).sum() for layer in self.layers)


def test_the_norms_are_those_that_torch_computes_and_the_update_is_what_changed(alone):
    model = Model()
    shard(model, model.layers, build_mesh(find_local_device()).sharding)
    norms = ParameterNorms(model)
    parameters = list(model.parameters())
    model(torch.ones(1, 3)).backward()
    norms.begin()
    before = [parameter.full_tensor().clone() for parameter in parameters]  # type: ignore[attr-defined]
    gradients = [parameter.grad.full_tensor() for parameter in parameters]
    torch.optim.SGD(parameters, lr=0.5).step()
    found = norms.finish({"of another": torch.tensor(0.1)})
    assert found.pop("of another") == float(torch.tensor(0.1))
    assert found["layers/00/grad_norm"] == pytest.approx(compute_norm(gradients[:2]))
    assert found["layers/01/weight_norm"] == pytest.approx(compute_norm(before[2:]))
    assert found["layers/01/update_norm"] == pytest.approx(0.5 * compute_norm(gradients[2:]))
    assert found["layers/01/update_ratio"] == pytest.approx(
        found["layers/01/update_norm"] / found["layers/01/weight_norm"]
    )
    assert found["kinds/weight/grad_norm"] == pytest.approx(
        compute_norm([gradients[0], gradients[2]])
    )


def test_a_parameter_that_is_not_used_has_a_gradient_of_0(alone):
    model = Model()
    shard(model, model.layers, build_mesh(find_local_device()).sharding)
    norms = ParameterNorms(model)
    model.layers[0](torch.ones(1, 3)).sum().backward()
    norms.begin()
    found = norms.finish({})
    assert found["layers/01/grad_norm"] == found["layers/00/update_norm"] == 0
    assert found["layers/00/grad_norm"] > 0 < found["layers/01/weight_norm"]


def compute_norm(tensors):
    return math.sqrt(sum(float(tensor.detach().square().sum()) for tensor in tensors))
