"""Encoder-decoders compared with random T5 models of Transformers and with themselves."""

import math

import numpy as np
import pytest
import torch

from trainrig.errors import ConfigError, DataError
from trainrig.flops import count_encoder_decoder_flops
from trainrig.models import find_model_class
from trainrig.models.architecture.decoder_config import count_parameters, parameter_shapes
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig, RelativeBias
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.models.encoder_decoder import CrossCache, find_buckets, write_answer
from trainrig.models.token_sampling import NextToken, Sampling, derive_stream, draw
from trainrig.objectives.denoising.span_corruption import shift_targets
from trainrig.parallel.training_statistics import ActivationStatistics

SIZES = {
    "layers": 2, "encoder_layers": 3, "channels": 24, "heads": 4, "head_channels": 8,
    "feedforward_channels": 40, "vocabulary": 64, "positions": 64,
}  # fmt: skip
DICE = torch.Generator().manual_seed(3)
IDS = torch.randint(1, 64, (3, 20), generator=DICE)
WRITTEN = torch.randint(1, 64, (3, 9), generator=DICE)


def make_model(**changes):
    config = EncoderDecoderConfig(**SIZES | changes)
    model = build_model(config)
    initialise(model, 5)
    with torch.no_grad():  # large enough that a mistake shows
        for parameter in model.parameters():
            parameter.mul_(8) if parameter.ndim == 2 else parameter.add_(0.1)
    return model.eval()


@pytest.mark.parametrize("changes", [{}, {"feedforward": {"kind": "ReLU"}, "tie_embeddings": True}])
def test_sizes_are_declared_without_torch_as_the_network_has_them(changes):
    model = make_model(**changes)
    named = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert named == parameter_shapes(model.config)
    assert sum(math.prod(size) for size in named.values()) == count_parameters(model.config).total


@torch.no_grad()
def test_packed_documents_are_those_alone():
    model = make_model()
    segments = torch.tensor([[1] * 8 + [2] * 12])
    written = torch.tensor([[1] * 4 + [2] * 5])
    both = model(IDS[:1], WRITTEN[:1], segments, written).logits
    first = model(IDS[:1, :8], WRITTEN[:1, :4]).logits
    second = model(IDS[:1, 8:], WRITTEN[:1, 4:]).logits
    assert (both - torch.cat([first, second], 1)).abs().max() < 1e-5
    assert (both - model(IDS[:1], WRITTEN[:1]).logits).abs().max() > 1e-2


@torch.no_grad()
def test_padding_changes_nothing_and_gives_numbers():
    model = make_model()
    segments = torch.ones_like(IDS[:1])
    written = torch.ones_like(WRITTEN[:1])
    segments[:, 15:] = 0
    written[:, 7:] = 0
    padded = model(IDS[:1], WRITTEN[:1], segments, written).logits
    alone = model(IDS[:1, :15], WRITTEN[:1, :7]).logits
    assert (padded[:, :7] - alone).abs().max() < 1e-5
    assert padded.isfinite().all()
    unpadded = model(IDS[:1], WRITTEN[:1], None, written).logits
    assert unpadded.isfinite().all()


@torch.no_grad()
def test_decoder_tokens_do_not_see_later_ones():
    model = make_model()
    whole = model(IDS, WRITTEN).logits
    changed = WRITTEN.clone()
    changed[:, 5] = 1 + changed[:, 5] % 60
    other = model(IDS, changed).logits
    assert (whole[:, :5] - other[:, :5]).abs().max() == 0
    assert (whole[:, 5:] - other[:, 5:]).abs().amax(dim=(0, 2)).min() > 1e-4
    read = IDS.clone()
    read[:, 19] = 1 + read[:, 19] % 60
    assert (whole - model(read, WRITTEN).logits).abs().amax(dim=(0, 2)).min() > 1e-4


@torch.no_grad()
def test_writing_token_by_token_with_caches_is_writing_at_once():
    model = make_model()
    whole = model(IDS, WRITTEN).logits
    segments = torch.ones_like(IDS)
    one = torch.ones_like(WRITTEN[:, :1])
    memory = model.read(IDS, segments)
    caches = [CrossCache(KeyValueCache()) for _ in range(model.config.layers)]
    for place in range(WRITTEN.shape[1]):
        new = WRITTEN[:, place : place + 1]
        found = model.write(memory, segments, new, one, caches).logits
        assert (found[:, 0] - whole[:, place]).abs().max() < 1e-5
    kept = caches[0].read
    assert kept is not None
    assert kept[0].shape == (3, 4, 20, 8)  # keys of the encoder's output, computed once


def test_buckets_are_by_the_formula_of_the_paper_of_every_distance():
    settings = RelativeBias(buckets=32, farthest=128)
    distances = torch.arange(-300, 301)
    for both_sides in (True, False):
        count = 16 if both_sides else 32
        for distance, bucket in zip(
            distances.tolist(), find_buckets(distances, settings, both_sides).tolist(), strict=True
        ):
            behind = abs(distance) if both_sides else max(-distance, 0)
            exact = count // 2
            wanted = behind
            if behind >= exact:
                share = math.log(behind / exact) / math.log(128 / exact)
                wanted = min(exact + int(np.float32(share) * (count - exact)), count - 1)
            assert bucket == wanted + (16 if both_sides and distance > 0 else 0), distance


def test_unsupported_settings_of_an_encoder_decoder_are_refused():
    for name, value in (
        ("logit_cap", 30.0),
        ("biases", {"qkv": True}),
        ("attention", {"query_scale": 1.0, "qk_norm": "head"}),
        ("head", "score"),
    ):
        with pytest.raises(ValueError, match=f"{name}.*leave"):
            EncoderDecoderConfig(**SIZES | {name: value})
    with pytest.raises(ValueError, match="above 16"):
        RelativeBias(farthest=16)
    with pytest.raises(ConfigError, match="vocabulary"):
        _ = EncoderDecoderConfig(**SIZES | {"vocabulary": None}).shapes
    assert find_model_class({"kind": "EncoderDecoder"}) is EncoderDecoderConfig


def test_operations_equal_the_sum_of_all_products():
    """Count by hooks on each linear map, and by hand for attention, which has none."""
    model = make_model()
    made_by_maps = 0

    def count(module, given, result):
        nonlocal made_by_maps
        made_by_maps += 2 * given[0].shape[:-1].numel() * module.weight.numel()

    maps = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    for linear in maps:
        if linear is not model.head:
            linear.register_forward_hook(count)
    model(IDS[:1], WRITTEN[:1])
    flops = count_encoder_decoder_flops(model.config, 20, 9)
    heads = 4 * 4 * 8  # multiply and add, queries by keys and weights by values, heads, channels
    attention = heads * (3 * 20 * 20 + 2 * 9 * (9 + 1) / 2 + 2 * 9 * 20)
    head = 2 * 9 * 64 * 24
    assert flops == pytest.approx(3 * (made_by_maps + attention + head))


@pytest.fixture(scope="module")
def transformers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        module = pytest.importorskip("transformers")
        module.logging.set_verbosity_error()
        yield module


def test_decoder_inputs_equal_transformers_shifted_targets(transformers):
    config = transformers.T5Config(
        vocab_size=64, d_model=8, d_ff=8, num_layers=1, num_heads=1, decoder_start_token_id=0
    )
    theirs = transformers.T5ForConditionalGeneration(config)
    labels = torch.cat([WRITTEN, torch.full((3, 2), -100)], dim=1)
    segments = (labels != -100).long()
    ours = shift_targets(labels.numpy(), segments.numpy(), 0)
    np.testing.assert_array_equal(ours[:, :9], theirs._shift_right(labels).numpy()[:, :9])


@torch.no_grad()
def test_entropy_of_attention_is_measured_with_the_bias():
    model = make_model()
    seen: dict[str, torch.Tensor] = {}
    attention = model.layers[0].attention
    attend = attention.attend

    def heard(query, key, value, sight):
        weights = (query @ key.mT + sight.mask_B1TS).softmax(-1)
        seen["entropy"] = torch.special.entr(weights[0]).sum(-1).mean()
        return attend(query, key, value, sight)

    attention.attend = heard
    model(IDS, WRITTEN)
    del attention.attend
    found = ActivationStatistics(model).measure(lambda: model(IDS, WRITTEN))
    entropy = float(found["layers/00/attention_entropy"])
    assert entropy == pytest.approx(float(seen["entropy"]), rel=1e-5)
    assert "layers/04/attention_entropy" in found
    assert np.isfinite(list(found.values())).all()


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_equals_whole_forward_passes(temperature):
    model = make_model()
    read = IDS[0].tolist()
    sampling = Sampling(temperature=temperature, maximum_tokens=12, seed=4)
    found = write_answer(model, read, (0, 7), sampling, stop=(), entries=60)
    written: list[int] = []
    for place in range(12):
        logits = model(IDS[:1], torch.tensor([[0, 7, *written]])).logits[0, -1, :60]
        token = NextToken(sampling, derive_stream(sampling), place)
        written += draw(logits[None], [token])
    assert list(found.ids) == written
    assert found.stopped == "length"
    ended = write_answer(model, read, (0, 7), sampling, stop=(written[5],), entries=60)
    first = written.index(written[5])
    assert (list(ended.ids), ended.stopped) == (written[:first], "end")
    full = write_answer(
        model, read, (0, 7), sampling.model_copy(update={"maximum_tokens": 500}), (), 60
    )
    assert (len(full.ids), full.stopped) == (62, "positions")
    with pytest.raises(DataError, match="reads from 1 to 64; shorten"):
        write_answer(model, read * 4, (0,), sampling, ())
