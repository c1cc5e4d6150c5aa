"""Stand-ins for GPU software: FlashAttention-2, and the language of Triton.

They compute the meaning of the calls on the CPU. So the arguments of kernels, and the arithmetic of
trainrig's own kernel, are compared with plain attention on every machine. They say nothing about
speed, about what compiles, or about the last bits; `make gpu` does.
"""

import contextlib
import importlib
import sys
from types import ModuleType, SimpleNamespace

import torch
from torch.nn.attention import flex_attention as torch_flex

import trainrig.models.kernels
from trainrig.models.kernels import kernel_support, varlen_attention
from trainrig.models.kernels.kernel_choice import Card

CARD = Card((9, 0), 232_448, is_triton_installed=True)
KERNEL = "trainrig.models.kernels.attention_kernel"


# FlashAttention-2, with the arguments of aten::_flash_attention_forward and _backward.


def _list_documents(query, key, value, query_bounds, key_bounds):
    """Yield the query and key positions of each document, and their [H, t, D] tensors.

    The queries are the last of the document's positions.
    """
    group = query.shape[1] // key.shape[1]
    for number in range(len(key_bounds) - 1):
        own = slice(*query_bounds[number : number + 2].tolist())
        others = slice(*key_bounds[number : number + 2].tolist())
        k, v = (x[others].repeat_interleave(group, 1).transpose(0, 1) for x in (key, value))
        yield own, others, query[own].transpose(0, 1), k, v


def _compute_logits(q, k, causal, scale, left, right):
    new = q.shape[1]
    count = k.shape[1]
    distance = torch.arange(count - new, count)[:, None] - torch.arange(count)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal or right >= 0:
        hidden |= distance < -(0 if causal else right)
    if left >= 0:
        hidden |= distance > left
    return (q @ k.mT * scale).masked_fill(hidden, -torch.inf)


def flash_forward(*given, scale, window_size_left, window_size_right):
    """Compute attention from the operator's positional arguments."""
    query, key, value, query_bounds, key_bounds, most_queries, most_keys, dropped, causal, _ = given
    assert query_bounds.dtype == key_bounds.dtype == torch.int32
    assert (most_queries, most_keys) == tuple(
        int(bounds.diff().max()) for bounds in (query_bounds, key_bounds)
    )
    assert query_bounds[-1] == len(query)
    assert key_bounds[-1] == len(key) == len(value)
    assert not dropped
    assert all(part.dim() == 3 and part.stride(-1) == 1 for part in (query, key, value))
    window = window_size_left, window_size_right
    seen = torch.empty_like(query)
    sums = query.new_empty(query.shape[1], len(query))
    for own, _, q, k, v in _list_documents(query, key, value, query_bounds, key_bounds):
        logits = _compute_logits(q, k, causal, scale, *window)
        seen[own] = (logits.softmax(-1) @ v).transpose(0, 1)
        sums[:, own] = logits.logsumexp(-1)
    empty = torch.empty(0)
    return seen, sums, empty, empty, empty


def flash_backward(gradient, *given, scale, window_size_left, window_size_right):
    query, key, value, seen, sums, query_bounds, key_bounds, _, _, _, causal, state, _ = given
    assert state.dtype == torch.uint64
    window = window_size_left, window_size_right
    found = of_query, of_key, of_value = [
        torch.empty_like(tensor) for tensor in (query, key, value)
    ]
    for own, others, q, k, v in _list_documents(query, key, value, query_bounds, key_bounds):
        shares = (_compute_logits(q, k, causal, scale, *window) - sums[:, own, None]).exp()
        g, o = (tensor[own].transpose(0, 1) for tensor in (gradient, seen))
        of_logits = shares * (g @ v.mT - (g * o).sum(-1, keepdim=True)) * scale
        of_query[own] = (of_logits @ k).transpose(0, 1)
        for whole, part in ((of_key, of_logits.mT @ q), (of_value, shares.mT @ g)):
            heads = part.unflatten(0, (key.shape[1], -1)).sum(1)
            whole[others] = heads.transpose(0, 1)
    return tuple(found)


# Triton: blocks are tensors, and pointers are offsets in a storage.


class Pointer:
    def __init__(self, numbers, at):
        self.numbers = numbers
        self.at = at
        self.dtype = SimpleNamespace(element_ty=numbers.dtype)

    def __add__(self, places):
        return Pointer(self.numbers, self.at + places)

    def __sub__(self, places):
        return Pointer(self.numbers, self.at - places)


def _point(argument):
    if not isinstance(argument, torch.Tensor):
        return argument
    count = argument.untyped_storage().nbytes() // argument.element_size()
    flat = torch.as_strided(argument.detach(), (count,), (1,), 0)
    return Pointer(flat, torch.tensor(argument.storage_offset()))


def _load(pointer, mask=None, other=0.0):
    if mask is None:
        return pointer.numbers[pointer.at]
    found = pointer.numbers[pointer.at.where(mask, 0)]
    return found.where(mask, torch.tensor(other, dtype=found.dtype))


def _store(pointer, value, mask):
    at, mask = torch.broadcast_tensors(pointer.at, mask)
    pointer.numbers[at[mask]] = value.to(pointer.numbers.dtype).expand(at.shape)[mask]


def _largest(x, axis):
    """Return the maximum, ignoring NaN as a GPU does."""
    return x.masked_fill(x.isnan(), -torch.inf).amax(axis)


class Jit:
    """A function of the kernel's file, called by another function or launched."""

    number = 0  # number of the running block

    def __init__(self, function):
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, *given, **named):
        return self.function(*given, **named)

    def __getitem__(self, grid):
        def launch(*given, num_warps, num_stages, **sizes):
            if self.__name__ in FAILING:
                raise OutOfResources("shared memory, Required: 106496, Hardware limit: 101376")
            pointers = [_point(argument) for argument in given]
            for Jit.number in range(grid[0]):
                self.function(*pointers, **sizes)

        return launch


class OutOfResources(Exception):
    pass


FAILING: set[str] = set()  # names of kernels that do not fit on the card


def _build_triton():
    language = ModuleType("triton.language")
    vars(language).update(
        constexpr=lambda value: value,
        program_id=lambda _: torch.tensor(Jit.number),
        cdiv=lambda count, size: -(-count // size),
        arange=torch.arange,
        full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        load=_load,
        store=_store,
        dot=lambda a, b, input_precision: a.float() @ b.float(),
        trans=lambda x: x.mT,
        where=torch.where,
        exp2=torch.exp2,
        log2=torch.log2,
        max=_largest,
        sum=torch.sum,
        maximum=torch.fmax,
        minimum=lambda x, most: x.clamp(max=most),
        abs=torch.abs,
        float32=torch.float32,
        int64=torch.int64,
    )
    triton = ModuleType("triton")
    autotuner = ModuleType("triton.runtime.autotuner")
    triton.jit = Jit
    triton.cdiv = language.cdiv
    triton.language = language
    autotuner.OutOfResources = OutOfResources
    return {
        "triton": triton,
        "triton.language": language,
        "triton.runtime": ModuleType("triton.runtime"),
        "triton.runtime.autotuner": autotuner,
    }


@contextlib.contextmanager
def stand_in(patch, card=CARD):
    """Compute kernels by the stand-ins, as if the CPU were `card`; `patch` is a monkeypatch.

    Return trainrig's kernel module.
    """
    patch.setattr(varlen_attention, "_kernel", flash_forward)
    patch.setattr(varlen_attention, "_kernel_backward", flash_backward)
    # Refuses to differentiate on a CPU.
    patch.setattr(torch_flex, "_validate_device", lambda *_: None)
    patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    patch.setattr("trainrig.models.decoder.read_card", lambda _: card)
    patch.delitem(sys.modules, KERNEL, raising=False)
    patch.setattr(kernel_support, "find_shared_memory", lambda _: card.shared_memory)
    with patch.context() as importing:  # only briefly, as torch also checks whether Triton exists
        for name, module in _build_triton().items():
            importing.setitem(sys.modules, name, module)
        kernel = importlib.import_module(KERNEL)
    patch.setitem(sys.modules, KERNEL, kernel)
    try:
        yield kernel
    finally:
        sys.modules.pop(KERNEL, None)
        vars(trainrig.models.kernels).pop("attention_kernel", None)
