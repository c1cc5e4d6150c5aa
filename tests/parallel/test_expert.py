import pytest
import torch

from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.parallel.axes.row_split import RowDivision
from trainrig.parallel.mesh import Axis

PLAIN = {"experts": 4, "active": 2}
KINDS = {
    "softmax": PLAIN,
    "sigmoid": PLAIN | {"scores": "sigmoid", "shared_experts": 1, "normalise": False},
    "capacity": PLAIN | {"capacity": 0.75},
    "tight": PLAIN | {"capacity": 0.1},
    "plain network": PLAIN | {"network": {"kind": "GELU"}},
    "bias": PLAIN | {"balance_bias": True},
    "gpt-oss": PLAIN
    | {
        "biased": True,
        "router_bias": True,
        "network": {"kind": "ClampedSwiGLU", "limit": 0.5},
        "shared_experts": 1,
        "shared_gate": True,
    },
    "groups": PLAIN | {"groups": {"count": 2, "active": 1}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 4])
def test_divided_experts_give_what_they_give_on_one_rank(kind, world, ranks):
    for errors, _ in ranks(world, "dispatched", mixture=KINDS[kind], rows=4, favourites=[]):
        # Each expert has the same rows in the same order, so its gradient has the same bits. But
        # torch's sigmoid, which makes the factors, rounds by the position in a tensor.
        if kind != "sigmoid":
            assert not any(error for name, error in errors.items() if "experts." in name)
        assert errors.pop("counts") == 0
        assert max(errors.values()) <= 1e-5


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("softmax", 7), ("capacity", 7), ("bias", 3)],
    ids=["softmax", "capacity", "last rank without text"],
)
def test_divided_experts_leave_out_padding_as_one_rank_does(kind, rows, ranks):
    told = {"mixture": KINDS[kind], "rows": rows, "favourites": [], "padded": True}
    for errors, _ in ranks(2, "dispatched", **told):  # the last row is only padding
        assert errors.pop("counts") == 0
        assert max(errors.values()) <= 1e-5


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_rows_may_be_too_few_for_equal_parts(rows, ranks):
    """Held-out rows may be too few: of one row, only one of two ranks has any."""
    for errors, _ in ranks(2, "dispatched", mixture=KINDS["capacity"], rows=rows, favourites=[]):
        assert max(errors.values()) <= 1e-5


@pytest.mark.parametrize("world", [2, 4])
def test_one_rank_may_get_every_token_and_the_others_none(world, ranks):
    favourites = list(range(4 // world))[:2]
    mixture = {"experts": 4, "active": len(favourites)}
    found = ranks(world, "dispatched", mixture=mixture, rows=4, favourites=favourites)
    assert max(max(errors.values()) for errors, _ in found) <= 1e-5
    copies = 4 // world * 6 * len(favourites)  # copies of tokens, on each rank
    one_way = copies * 32 * 4
    # Tokens are sent to the experts and back, and so are gradients. The first rank also sends the
    # results of the others' tokens.
    assert [sent for _, sent in found] == [2 * one_way * (world - 1)] + [2 * one_way] * (world - 1)


@pytest.mark.parametrize(("rows", "ranks_of_it"), [(4, 2), (5, 2), (1, 4), (7, 3)])
def test_each_row_of_a_micro_batch_is_on_one_rank_in_order(rows, ranks_of_it):
    ids = torch.arange(rows * 3).view(rows, 3)
    batch = DeviceBatch({"ids": ids}, torch.arange(rows), torch.arange(rows) + 10)
    parts = [RowDivision(Axis(ranks_of_it, rank)).take_part(batch) for rank in range(ranks_of_it)]
    assert torch.equal(torch.cat([part.arrays["ids"] for part in parts]), ids)
    assert torch.equal(torch.cat([part.samples_B for part in parts]), batch.samples_B)
    assert torch.equal(torch.cat([part.sources_B for part in parts]), batch.sources_B)
    sizes = [len(part.samples_B) for part in parts]
    assert max(sizes) - min(sizes) <= 1
