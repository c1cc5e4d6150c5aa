"""What layers save, in the host's memory: run here as if a CPU had a memory of its own."""

import gc
import itertools

import pytest
import torch
from tests.parallel.activation_memory.test_recompute import CONFIG, batch, gradients

from trainrig.models import decoder
from trainrig.models.decoder import Decoder, initialise
from trainrig.parallel.activation_memory import host_copies
from trainrig.parallel.activation_memory.host_copies import keep_on_host
from trainrig.parallel.activation_memory.recompute import Full, choose_kept, recompute
from trainrig.parallel.compiled import Compile, compile_layers


@pytest.fixture
def apart(monkeypatch):
    """Has CPUs be devices apart, and sends all that is saved; bytes of what was sent and is there
    now on the host, and what is there at once on the device again at most."""
    monkeypatch.setattr(host_copies, "APART", ("cpu",))
    monkeypatch.setattr(host_copies, "LEAST_BYTES", 0)
    return Watched(monkeypatch)


class Watched:
    def __init__(self, monkeypatch):
        self.sent, self.fetched, self.most_back, self.places = [], [], 0, set()
        send, fetch = host_copies._send, host_copies._fetch

        def watch_sent(tensor):
            there = send(tensor)
            self.places.add(tensor.data_ptr())
            self.sent.append(torch.utils.weak.WeakTensorKeyDictionary({there: there.nbytes}))
            return there

        def watch_fetched(there, device):
            back = fetch(there, device)
            self.fetched.append(torch.utils.weak.WeakTensorKeyDictionary({back: back.nbytes}))
            self.most_back = max(self.most_back, self.count(self.fetched))
            return back

        monkeypatch.setattr(host_copies, "_send", watch_sent)
        monkeypatch.setattr(host_copies, "_fetch", watch_fetched)

    @staticmethod
    def count(tensors):
        return sum(sum(each.values()) for each in tensors)


def build(kept=None, compiled=None, hosted=True, dtype=torch.float32):
    model = Decoder(CONFIG)
    initialise(model, 0)
    model = model.to(dtype)
    recompute(model.layers, choose_kept(len(model.layers), kept))
    compile_layers(model.layers, compiled)
    if hosted:
        keep_on_host(model.layers)
    return model


@pytest.mark.parametrize(
    ("kept", "compiled"),
    [
        (None, None),
        (Full(), None),
        (Full(every=2), None),
        pytest.param(None, Compile(backend="aot_eager"), marks=pytest.mark.slow),
        pytest.param(Full(), Compile(backend="aot_eager"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_the_same_to_the_bit(kept, compiled, dtype, packed, apart):
    plain, hosted = (
        gradients(build(kept, compiled, hosted, dtype), packed) for hosted in (False, True)
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, hosted, strict=True))
    assert len(apart.sent) == len(apart.fetched) > 0


def test_each_tensor_is_sent_once_and_let_go_of_after_its_layer(apart):
    model, ids = build(), batch()
    loss = model(ids).logits.float().sum()
    gc.collect()
    of_each = apart.count(apart.sent)
    assert not apart.fetched
    loss.backward()
    del loss
    gc.collect()
    assert apart.count(apart.sent) == apart.count(apart.fetched) == 0
    # Two of four layers at a time, and no more.
    assert apart.most_back == pytest.approx(of_each / 2, rel=0.01)


def test_of_layers_that_compute_again_the_input_alone_is_sent(apart):
    model, ids = build(Full()), batch()
    model(ids).logits.sum()
    assert [each for copies in apart.sent for each in copies.values()] == []
    logits = model(ids).logits
    sizes = [size for copies in apart.sent for size in copies.values()]
    assert sizes == [ids.numel() * CONFIG.channels * 4] * 4
    assert logits.requires_grad


def test_weights_masks_and_what_is_small_stay(apart, monkeypatch):
    masks, make = [], decoder.make_added_mask
    monkeypatch.setattr(
        decoder, "make_added_mask", lambda *told: masks.append(make(*told)) or masks[-1]
    )
    model, ids = build(), batch()
    positions = torch.arange(48).remainder(20).expand(3, -1)
    logits = model(ids, positions_BT=positions).logits
    shared = {each.data_ptr() for each in (*masks, *model.parameters())}
    assert masks and logits.requires_grad and len(apart.sent) > 20
    assert not shared & apart.places
    many = len(apart.sent)
    monkeypatch.setattr(host_copies, "LEAST_BYTES", 10**9)
    model(ids)
    assert len(apart.sent) == many


def test_nothing_is_moved_on_a_cpu_or_without_a_backward_pass(monkeypatch):
    sent = []
    monkeypatch.setattr(host_copies, "_send", lambda tensor: sent.append(tensor))
    model, ids = build(), batch()
    model(ids)
    monkeypatch.setattr(host_copies, "APART", ("cpu",))
    with torch.no_grad():
        model(ids)
    assert not sent


def test_the_layer_before_is_fetched_while_one_goes_backward(apart, monkeypatch):
    order = []
    fetch = host_copies.LayerCopies.fetch

    def note(copies):
        if not copies._fetched:
            order.append(copies)
        fetch(copies)

    monkeypatch.setattr(host_copies.LayerCopies, "fetch", note)
    model, ids = build(), batch()
    one, two = (model(ids).logits.sum() for _ in range(2))  # two micro-batches under way
    for loss in (one, two):
        order.clear()
        loss.backward()
        assert len(order) == 4
        for after, before in itertools.pairwise(order):
            assert after._before() is before
        assert order[-1]._before is None
