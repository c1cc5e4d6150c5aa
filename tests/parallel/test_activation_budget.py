"""A memory budget of saved activations: the fewest possible layers are recomputed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.recomputed import (
    CONFIG,
    batch,
    kept_for_the_backward_pass,
)

from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.parallel import activation_budget
from trainrig.parallel.activation_budget import GIB, Room, describe_kept, plan_kept
from trainrig.parallel.layout import FSDP
from trainrig.parallel.precision import FLOAT32, Precision
from trainrig.parallel.recompute import Budget

MIXTURE = {"kind": "MixtureOfExperts", "experts": 4, "active": 2, "dense_layers": 1}


def measure_room(size, layout=None, tokens=144, precision=FLOAT32, lora=None):
    laid_out = FSDP.model_validate({"kind": "FSDP", **(layout or {})})
    return Room(Budget(gib=size / GIB), laid_out, precision, tokens, lora)


def estimate_bytes(model, kept, given, rank=0):
    sizes = activation_budget._list_bytes(model, given, rank)
    return sum(own[what] for own, what in zip(sizes, kept, strict=True))


def measure_bounds(model, given, rank=0):
    sizes = activation_budget._list_bytes(model, given, rank)
    return sum(own["input"] for own in sizes), sum(own["all"] for own in sizes)


LAYOUTS = [
    {},
    {"tensor": {"ranks": 2, "sequence_parallel": True}},
    {"context": {"kind": "Gathered", "ranks": 2}},
    {"pipeline": {"ranks": 2}},
    {"pipeline": {"ranks": 2, "schedule": "interleaved", "chunks": 2}},
]


@given(
    share=st.floats(0, 1.1),
    layout=st.sampled_from(LAYOUTS),
    narrow=st.booleans(),
    lora=st.sampled_from([None, LoRA(rank=2)]),
)
def test_the_choice_fits_and_one_recomputed_layer_less_would_not(share, layout, narrow, lora):
    precision = Precision(compute="bfloat16") if narrow else FLOAT32
    for rank in range(layout.get("pipeline", {"ranks": 1})["ranks"]):
        least, most = measure_bounds(CONFIG, measure_room(1, layout, 144, precision, lora), rank)
        given = measure_room(least + share * (most - least) + 1, layout, 144, precision, lora)
        kept = plan_kept(CONFIG, given, rank)
        limit = given.budget.gib * GIB
        assert estimate_bytes(CONFIG, kept, given, rank) <= limit
        last = [number for number, what in enumerate(kept) if what == kept[0]][-1]
        if kept[0] == "all":
            assert set(kept) == {"all"}
            continue
        before = "all" if kept[0] == "products" else "products"
        fewer = [*kept[:last], before, *kept[last + 1 :]]
        assert estimate_bytes(CONFIG, fewer, given, rank) > limit
        assert set(kept[last + 1 :]) <= {before}


def test_the_estimate_equals_the_bytes_that_a_model_keeps():
    """Compare the estimate with counted bytes wherever one more of four layers is recomputed.

    Tensors outside the layers, and the logarithms and roots of attention and norms, are not part of
    the estimate.
    """
    least, most = measure_bounds(CONFIG, measure_room(1))
    tokens = batch().numel()
    seen = set()
    for step in range(12):
        given = measure_room(least + step / 11 * (most - least) + 1, tokens=tokens)
        kept = plan_kept(CONFIG, given)
        if kept in seen:
            continue
        seen.add(kept)
        counted = kept_for_the_backward_pass(kept) - kept_for_the_backward_pass(("input",) * 4)
        reckoned = estimate_bytes(CONFIG, kept, given) - least
        assert counted == pytest.approx(reckoned, rel=0.06, abs=1)
    assert len(seen) > 6


def test_too_small_a_budget_is_refused_with_one_that_does():
    least, _ = measure_bounds(CONFIG, measure_room(1, tokens=10**6))
    with pytest.raises(
        ConfigError, match=r"gib \(.*\) is below the (.*) GiB that the inputs"
    ) as told:
        plan_kept(CONFIG, measure_room(least - 1, tokens=10**6))
    enough = float(str(told.value).split(" is below the ")[1].split()[0])
    assert plan_kept(CONFIG, measure_room(enough * GIB, tokens=10**6)) == ("input",) * 4


def test_experts_that_workers_divide_compute_all_again():
    model = CONFIG.model_copy(update={"feedforward": DecoderConfig(
        **CONFIG.model_dump(exclude={"feedforward"}), feedforward=MIXTURE
    ).feedforward})  # fmt: skip
    for layout, ways in (({"expert": {"ranks": 2}}, {"all", "input"}), ({}, {"all", "products"})):
        least, most = measure_bounds(model, measure_room(1, layout))
        assert set(plan_kept(model, measure_room((least + 4 * most) / 5, layout))) == ways


def test_stages_keep_as_many_micro_batches_as_are_under_way():
    """1F1B keeps two micro-batches on the first stage, and one on the last."""
    deep = CONFIG.model_copy(update={"vocabulary": 16})
    first, last = (measure_bounds(deep, measure_room(1, LAYOUTS[3]), rank)[1] for rank in (0, 1))
    assert first == 2 * last == measure_bounds(deep, measure_room(1))[1]


def test_encoders_are_refused():
    model = EncoderConfig(layers=1, channels=32, heads=4, vocabulary=64, positions=64)
    with pytest.raises(ConfigError, match=r'support models of kind.*= "Full"'):
        plan_kept(model, measure_room(1e9))


def test_the_message_counts_layers_by_what_they_keep():
    kept = tuple(itertools.chain(["input"] * 2, ["products"]))
    assert describe_kept(kept) == "1 the outputs of products, 2 their input"
