"""Gradients that a rank holds between the micro-batches of a step: slices, or full ones."""

import pytest

from trainrig.train.run_file.training_settings import Training

BY_LAYER = {"kind": "FSDP", "reshard": "layer"}
EACH = {"deterministic": False, "parallel": BY_LAYER | {"reduce": "micro_batch"}}
ONCE = {"deterministic": False, "parallel": BY_LAYER}
PLAIN = {"schedule": {"kind": "Constant", "warmup": 0}}


def test_no_whole_gradient_is_held_where_each_micro_batch_is_reduced(ranks):
    world = 2
    for training, whole in ((EACH, False), (ONCE, True)):
        found = ranks(world, "held_between", layers=3, training=PLAIN | training, count=3 * world)
        for held in found:
            *between, last = held
            assert len(between) == 2 and last == 0
            assert [size > 0 for size in between] == [whole, whole]
            assert len(set(between)) == 1
    least = 3 * 4 * 32 * 32 * 4  # float32 of the layers' square products alone
    assert between[0] > least


@pytest.mark.parametrize(
    "parallel", [EACH["parallel"], {"kind": "HSDP", "replicas": 2, "reduce": "micro_batch"}]
)
def test_a_step_is_the_same_however_often_it_reduces(parallel, ranks, make_job, tmp_path):
    losses = {}
    for world, laid_out in ((1, BY_LAYER), (2, parallel)):
        training = {"deterministic": False, "parallel": laid_out}
        job = make_job(tmp_path / str(world), world, training=training)
        losses[world] = ranks(world, "steps", job=job, count=3)[0]["losses"]
    assert losses[2] == pytest.approx(losses[1], rel=1e-6)


LAYER = 4 * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64)  # bytes of the parameters of one layer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "training", "held"),
    [
        # Slices of the sum, and what a layer computes; more micro-batches need no more memory.
        (2, EACH, 1 / 2),
        (2, ONCE, 1),
        # A partial sum waits for its other half, besides the sum's slices.
        pytest.param(
            *(4, {"parallel": BY_LAYER | {"reduce": "micro_batch"}, "virtual_workers": 4}, 2 / 4),
            marks=pytest.mark.soak,
        ),
        (2, {"parallel": BY_LAYER, "virtual_workers": 2}, 1),
    ],
    ids=["fast, each", "fast, once", "exact, each", "exact, once"],
)
def test_the_peak_of_a_step_grows_with_layers_by_what_is_held_of_each(world, training, held, ranks):
    """Count tensors at two depths, where all other tensors of a step are a fixed number of units.

    So only the held gradients (`held`: a share of all) and what layers keep of 4 tokens grow.
    """
    eight, twelve = (
        ranks(world, "peak_in_a_step", layers=n, training=PLAIN | training, count=2 * world)[0]
        for n in (8, 12)
    )
    assert (twelve - eight) / 4 / LAYER == pytest.approx(held, abs=0.15)


def test_the_exact_sum_refuses_to_reduce_parts_of_micro_batches():
    parallel = EACH["parallel"] | {"context": {"kind": "Gathered", "ranks": 2}}
    with pytest.raises(ValueError, match=r"'micro_batch' with parallel\.context adds gradients"):
        Training(steps=1, parallel=parallel)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_and_a_head_apart_take_no_more_at_the_peak_than_one_that_is_both(tied, ranks):
    """Compare in tables of float32, on one of two ranks.

    Sent together they took 5: two gradients, both again as they are sent, and their slices.
    """
    training = PLAIN | EACH | {"optimizer": {"kind": "SGD"}}
    given = {"layers": 2, "training": training, "count": 4, "tied": tied}
    small, large = (
        ranks(2, "peak_in_a_step", **given, vocabulary=entries)[0] for entries in (2048, 4096)
    )
    assert (large - small) / (2048 * 64 * 4) == pytest.approx(3.5, abs=0.1)
