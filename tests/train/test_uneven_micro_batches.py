"""Steps whose number of micro-batches is not a power of two, where ranks share each of them."""

import pytest

CONTEXT = {"context": {"kind": "Gathered", "ranks": 2}}
EXPERT = {"expert": {"ranks": 2}}
TENSOR = {"tensor": {"ranks": 2}}
PIPELINE = {"pipeline": {"ranks": 2}}
MIXTURE = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}
ONE_AXIS = [(axis, count, 8) for axis in (CONTEXT, EXPERT) for count in (3, 5, 6, 7)]
ONE_AXIS += [(axis, 12, virtual) for axis in (CONTEXT, EXPERT) for virtual in (3, 5)]
PAIRS = [
    (CONTEXT | TENSOR, 3, 8),
    (CONTEXT | PIPELINE, 5, 8),
    (EXPERT | TENSOR, 3, 8),
    (EXPERT | PIPELINE, 5, 8),
]


@pytest.fixture
def train(make_job, ranks, tmp_path):
    """Return `train(replicas, axes, micro_batches, virtual)`: losses and weights of two steps."""

    def train(replicas, axes, micro_batches, virtual, mixture=False):
        world = replicas * 2 ** len(axes)
        job = make_job(
            tmp_path / f"{replicas}-{len(axes)}",
            world,
            model={"feedforward": MIXTURE} if mixture or "expert" in axes else {},
            batches={"global_batch": 2 * micro_batches},
            training={"parallel": {"kind": "FSDP", **axes}, "virtual_workers": virtual},
        )
        found = ranks(world, "steps", job=job, count=2)
        return found[0]["losses"], found[0]["digest"]

    return train


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "micro_batches", "virtual"), ONE_AXIS)
def test_one_and_two_replicas_give_the_same_bits(axes, micro_batches, virtual, train):
    alone = train(1, axes, micro_batches, virtual)
    assert train(2, axes, micro_batches, virtual) == alone


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "micro_batches", "virtual"), PAIRS)
def test_pairs_of_axes_train_as_one_rank_does(axes, micro_batches, virtual, train):
    losses, _ = train(1, axes, micro_batches, virtual)
    alone, _ = train(1, {}, micro_batches, virtual, mixture="expert" in axes)
    assert losses == pytest.approx(alone, abs=1e-5)
