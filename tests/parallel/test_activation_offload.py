"""Saved activations in host memory, with CPUs that act as separate devices."""

import weakref

import pytest
import torch
from support.recomputed import CONFIG, batch, gradients

from trainrig.models import decoder
from trainrig.models.decoder import Decoder, initialise
from trainrig.parallel import activation_offload
from trainrig.parallel.activation_offload import keep_on_host
from trainrig.parallel.layer_compilation import Compile, compile_layers
from trainrig.parallel.recompute import Full, choose_kept, recompute


@pytest.fixture
def apart(monkeypatch):
    """Treat CPUs as separate devices, offload all saved tensors, and record where tensors are."""
    monkeypatch.setattr(activation_offload, "APART", ("cpu",))
    monkeypatch.setattr(activation_offload, "LEAST_BYTES", 0)
    return Watched(monkeypatch)


class Watched:
    """Recorder of all passes through layers.

    It counts the bytes offloaded, the fetches, and the peak device memory of tensors that have a
    host copy.
    """

    def __init__(self, monkeypatch):
        self.sent = []
        self.places = set()
        self.passes = weakref.WeakSet()
        self.fetched = self.most = 0
        send = activation_offload._send
        fetch = activation_offload._fetch
        watched = self

        def watch_sent(here):
            self.sent.append(here.nbytes)
            self.places.add(here.data_ptr())
            return send(here)

        def watch_fetched(gone):
            self.fetched += len(gone)
            return fetch(gone)

        class Copies(activation_offload.LayerCopies):
            def __init__(copies, *told):
                super().__init__(*told)
                watched.passes.add(copies)

            def pack(copies, tensor):
                found = super().pack(tensor)
                watched.look()
                return found

            def unpack(copies, saved):
                found = super().unpack(saved)
                watched.look()
                return found

        monkeypatch.setattr(activation_offload, "_send", watch_sent)
        monkeypatch.setattr(activation_offload, "_fetch", watch_fetched)
        monkeypatch.setattr(activation_offload, "LayerCopies", Copies)

    def look(self):
        self.most = max(self.most, self.count_here())

    def count_here(self):
        copies = [copy for layer_pass in self.passes for copy in layer_pass._copies.values()]
        return sum(copy.here.nbytes for copy in copies if copy.here is not None)


def build(kept=None, compiled=None, hosted=True, dtype=torch.float32, stages=None):
    model = Decoder(CONFIG)
    initialise(model, 0)
    model = model.to(dtype)
    recompute(model.layers, choose_kept(len(model.layers), kept))
    compile_layers(model.layers, compiled)
    if hosted:
        keep_on_host(
            [model.layers] if stages is None else [model.layers[stage] for stage in stages]
        )
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
    # The last two layers' tensors were still on the device.
    assert 0 < apart.fetched < len(apart.sent)
    if isinstance(kept, Full) and kept.every == 1:
        inputs = batch().numel() * CONFIG.channels * dtype.itemsize
        sizes = [size for size in apart.sent if size != torch.get_rng_state().nbytes]
        assert sizes == [inputs] * 4  # besides the random state of compiled layers


@pytest.mark.parametrize("kept", [None, Full()])
def test_two_layers_are_on_the_device_and_nothing_outlives_the_backward_pass(kept, apart):
    model = build(kept)
    ids = batch()
    loss = model(ids).logits.float().sum()
    of_a_layer = sum(apart.sent) / 4
    assert apart.count_here() == pytest.approx(2 * of_a_layer, rel=0.01)
    loss.backward()
    assert apart.fetched == pytest.approx(len(apart.sent) / 2, abs=1)
    del loss
    assert not apart.passes  # freed without the garbage collector
    assert apart.most == pytest.approx(2 * of_a_layer, rel=0.01)


def test_several_micro_batches_under_way_have_two_layers_there_as_well(apart):
    model = build()
    ids = batch()
    one, two = (model(ids).logits.sum() for _ in range(2))
    of_a_layer = sum(apart.sent) / 8
    assert apart.count_here() == pytest.approx(2 * of_a_layer, rel=0.01)
    one.backward()
    two.backward()
    # During a backward pass through a layer of the first, the last two of the second are there too.
    assert apart.most == pytest.approx(4 * of_a_layer, rel=0.01)


def test_weights_masks_and_what_is_small_stay(apart, monkeypatch):
    masks = []
    make = decoder.attention.make_added_mask
    monkeypatch.setattr(
        decoder.attention, "make_added_mask", lambda *told: masks.append(make(*told)) or masks[-1]
    )
    model = build()
    ids = batch()
    positions = torch.arange(48).remainder(20).expand(3, -1)
    logits = model(ids, positions_BT=positions).logits
    shared = {tensor.data_ptr() for tensor in (*masks, *model.parameters())}
    assert masks and logits.requires_grad and len(apart.sent) > 20
    assert not shared & apart.places
    many = len(apart.sent)
    monkeypatch.setattr(activation_offload, "LEAST_BYTES", 10**9)
    model(ids)
    assert len(apart.sent) == many


def test_nothing_is_moved_on_a_cpu_or_without_a_backward_pass(monkeypatch):
    sent = []
    monkeypatch.setattr(activation_offload, "_send", lambda tensor: sent.append(tensor))
    model = build()
    ids = batch()
    model(ids)
    monkeypatch.setattr(activation_offload, "APART", ("cpu",))
    with torch.no_grad():
        model(ids)
    assert not sent


@pytest.mark.parametrize("stages", [None, [slice(0, 2), slice(2, 4)]])
def test_the_layer_before_is_fetched_while_one_goes_backward(stages, apart, monkeypatch):
    """A pipeline rank with several stages fetches the layer of the same stage and micro-batch."""
    order = []
    fetch = activation_offload.LayerCopies.fetch

    def note(copies):
        if not copies._fetched:
            order.append(copies)
        fetch(copies)

    monkeypatch.setattr(activation_offload.LayerCopies, "fetch", note)
    model = build(stages=stages)
    ids = batch()
    one, two = (model(ids).logits.sum() for _ in range(2))  # two micro-batches in flight
    for loss in (one, two):
        order.clear()
        loss.backward()
        assert [layer_pass._layer for layer_pass in order] == list(model.layers)[::-1]
        firsts = {0} if stages is None else {0, 2}
        for number, layer_pass in zip((3, 2, 1, 0), order, strict=True):
            before = layer_pass._before and layer_pass._before()
            assert before is (None if number in firsts else order[4 - number])
