"""Optimizers whose state is in host memory: identical bits, and little memory on the device."""

import contextlib
import itertools
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainrig.optim import SGD, Adafactor, Adam, AdamW, Lion, Muon
from trainrig.optim.elementwise import to_local
from trainrig.optim.named_groups import NamedGroup, build_optimizer
from trainrig.optim.optimizer_offload import ALIGNMENT, Lanes, _make_host_tensor

SIZES = {
    "embedding.weight": (50, 32),
    "layers.0.up.weight": (33, 17),  # rows that fill no SIMD vector
    "layers.1.up.weight": (64, 32),
    "layers.0.experts.up": (2, 6, 16),
    "norm.weight": (17,),
}
OPTIMIZERS = [
    SGD(nesterov=True),
    SGD(momentum=0),
    Adam(weight_decay=0.1),
    AdamW(),
    AdamW(state="bfloat16"),
    Lion(),
    Lion(state="bfloat16"),
    Adafactor(),
    Muon(),
]
GROUPS = (
    NamedGroup(match="embedding.*", optimizer=Lion(lr=0.001, state="bfloat16")),
    NamedGroup(match="layers.0.*", rate=0.5, weight_decay=0.0),
)


def draw_gradients(steps=5):
    """Return the gradients of each step.

    A gain has no gradient in the second step, so its state is created later or is kept unchanged.
    """
    generator = torch.Generator().manual_seed(5)
    for step in range(steps):
        drawn = {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}
        yield {n: gradient for n, gradient in drawn.items() if step != 1 or n != "norm.weight"}


def train(settings, groups=(), **kept):
    """Return the parameters by name and their optimizer after five steps."""
    generator = torch.Generator().manual_seed(6)
    parameters = {n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in SIZES.items()}
    optimizer = build_optimizer(parameters.items(), settings, groups, **kept)
    for number, gradients in enumerate(draw_gradients()):
        for name, parameter in parameters.items():
            parameter.grad = gradients.get(name)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (number + 1)  # a schedule does the same
        optimizer.step()
    return parameters, optimizer


def list_memory(parameters, optimizer):
    return {
        (name, what): value
        for part in optimizer.parts
        for name, parameter in parameters.items()
        for what, value in part.state.get(parameter, {}).items()
    }


@pytest.mark.parametrize("groups", [(), GROUPS], ids=["alike", "in groups"])
@pytest.mark.parametrize("settings", OPTIMIZERS, ids=lambda optimizer: f"{optimizer.kind}")
def test_no_bit_of_weights_and_memory_depends_on_where_the_memory_is(settings, groups):
    expected = train(settings, groups)
    found = train(settings, groups, hosted=True)
    for name, parameter in expected[0].items():
        assert torch.equal(found[0][name], parameter)
    memory = list_memory(*expected)
    own = list_memory(*found)
    assert own.keys() == memory.keys()
    for key, value in memory.items():
        assert own[key].dtype == value.dtype and own[key].stride() == value.stride()
        assert torch.equal(own[key], value), key


class LiveBytes(TorchDispatchMode):
    """Counter of the bytes of tensors created inside the block, now and at most."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.most = 0
        self._known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            tensor.untyped_storage().data_ptr()
            for tensor in tree_leaves(args)
            if _is_tensor(tensor)
        }
        found = func(*args, **(kwargs or {}))
        for tensor in filter(_is_tensor, tree_leaves(found)):
            storage = tensor.untyped_storage()
            if storage.data_ptr() in given or storage.data_ptr() in self._known:
                continue
            self._known.add(storage.data_ptr())
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._let_go, storage.data_ptr(), storage.nbytes())
        return found

    def _let_go(self, pointer, size):
        self._known.discard(pointer)
        self.now -= size


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


@pytest.mark.parametrize("hosted", [True, False])
def test_a_step_holds_the_memory_of_two_parameters_and_none_is_left(hosted):
    sizes = [(64, 32), (16, 32), (48, 32), (32, 32), (16, 16), (8, 32)]
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    named = ((f"layers.{n}.up.weight", tensor) for n, tensor in enumerate(parameters))
    optimizer = build_optimizer(named, AdamW(), hosted=hosted)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    with LiveBytes() as live:
        optimizer.step()
    largest = sorted((8 * tensor.numel() for tensor in parameters), reverse=True)[:2]
    assert all(size % ALIGNMENT == 0 for size in largest)
    if hosted:  # step counters, a few numbers, are compared as well
        assert largest[0] < live.most <= sum(largest) + 64
        assert live.now == 0
    else:
        assert live.most <= 64


def test_an_update_changes_copies_and_the_host_keeps_its_own_tensors():
    parameters, optimizer = train(AdamW(), hosted=True)
    before = {key: value.data_ptr() for key, value in list_memory(parameters, optimizer).items()}
    seen = set()
    for part in optimizer.parts:
        sound = part._inner.step

        def step(part=part, sound=sound):
            state = [entry for one in part._inner.state.values() for entry in one.items()]
            seen.update(value.data_ptr() for name, value in state if name != "step")
            sound()

        part._inner.step = step
    optimizer.step()
    assert len(seen) > 0 and not seen & set(before.values())
    after = list_memory(parameters, optimizer)
    assert {key: value.data_ptr() for key, value in after.items()} == before


class Written(Lanes):
    """Lanes that record each request."""

    def __init__(self):
        self.lines = []

    def __getattribute__(self, name):
        lines = super().__getattribute__("lines")
        if name not in ("begin", "fetch", "use", "store", "join", "wait"):
            return lines

        def write(*slot):
            lines.append((name, *slot))
            return contextlib.nullcontext()

        return write


def test_the_next_is_fetched_before_an_update_and_what_it_gave_is_stored_after():
    parameters = [nn.Parameter(torch.randn(4, 16)) for _ in range(3)]
    named = ((f"layers.{n}.up.weight", parameter) for n, parameter in enumerate(parameters))
    (part,) = build_optimizer(named, Lion(), hosted=True).parts
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    part.step()
    part._lanes = Written()  # type: ignore[attr-defined]
    sound = part._inner.step  # type: ignore[attr-defined]
    part._inner.step = lambda: (part._lanes.lines.append("update"), sound())  # type: ignore[attr-defined]
    part.step()
    first = ("begin",)
    last = ("join",)
    turns = [
        [("fetch", 0), ("fetch", 1), ("use", 0), "update", ("store", 0)],
        [("fetch", 0), ("use", 1), "update", ("store", 1)],
        [("use", 0), "update", ("store", 0)],
    ]
    assert part._lanes.lines == [first, *itertools.chain(*turns), last]  # type: ignore[attr-defined]
    part.state_dict()
    assert part._lanes.lines[-1] == ("wait",)  # type: ignore[attr-defined]


def test_torch_gives_a_fresh_one_its_memory_in_the_host_too():
    model = nn.Sequential(nn.Linear(16, 16))
    optimizer = build_optimizer(model.named_parameters(), AdamW(), hosted=True)
    found = get_optimizer_state_dict(model, optimizer.parts)["state"]
    for name, parameter in model.named_parameters():
        (kept,) = (part.state[parameter] for part in optimizer.parts if parameter in part.state)
        assert found[name]["exp_avg_sq"] is kept["exp_avg_sq"]
        assert kept["exp_avg_sq"].device.type == "cpu"


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=lambda optimizer: f"{optimizer.kind}")
def test_sliced_parameters_have_sliced_state_on_the_same_mesh(settings, one_rank):
    mesh = init_device_mesh("cpu", (1,))
    start = torch.randn(8, 16)
    sliced = nn.Parameter(DTensor.from_local(start.clone(), mesh, [Shard(0)]))
    whole = nn.Parameter(start.clone())
    for weight, hosted in ((sliced, True), (whole, False)):
        optimizer = build_optimizer([("up.weight", weight)], settings, hosted=hosted)
        for _ in range(3):
            weight.grad = torch.full_like(weight, 0.5)
            optimizer.step()
        for name, kept in optimizer.parts[0].state[weight].items():
            if hosted and name != "step":
                assert isinstance(kept, DTensor)
                assert (kept.device_mesh, kept.placements) == (mesh, sliced.placements)  # type: ignore[attr-defined]
    assert torch.equal(to_local(sliced), whole)


def test_a_slice_in_the_host_keeps_the_mesh_of_a_gpu(one_rank):
    mesh = DeviceMesh("cuda", [0], _init_backend=False)
    on_gpu = DTensor.from_local(torch.empty(8, 16, device="meta"), mesh, [Shard(0)])
    kept = _make_host_tensor(on_gpu)
    assert isinstance(kept, DTensor) and to_local(kept).device.type == "cpu"
    assert (kept.device_mesh, kept.placements) == (mesh, on_gpu.placements)
    assert kept.shape == on_gpu.shape and kept.stride() == on_gpu.stride()
