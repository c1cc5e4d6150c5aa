import pytest

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.scaling.sweep.sweep_run_file import (
    DesignPoint,
    Grid,
    IsoFLOP,
    ModelShape,
    Points,
    Rays,
    Sweep,
)


def build_sweep(**design: object) -> Sweep:
    given = {"stage": "sweep", "tokens": "t", "output": "o", "design": design}
    return config.build(Sweep, given, "s")


def make_model(parameters: float) -> ModelShape:
    """Return a model of this number of parameters, whose embedding doubles the cost of a token."""
    return ModelShape(int(parameters), 12.0 * parameters)


def test_a_grid_has_every_size_at_every_length():
    design = Grid(parameters=(200.0, 100.0), tokens=(3e3, 1e3))
    pairs = [(100, 1e3), (100, 3e3), (200, 1e3), (200, 3e3)]
    assert design.list_points(make_model) == tuple(DesignPoint(n, d) for n, d in pairs)


def test_rays_have_each_size_at_multiples_of_what_its_decoder_has():
    design = Rays(parameters=(100.0, 200.0), tokens_per_parameter=(5.0, 20.0))
    off = design.list_points(lambda parameters: ModelShape(int(parameters) + 1, 1.0))
    assert [(p.parameters, p.tokens) for p in off] == [
        *((100, 505), (100, 2020)),
        *((200, 1005), (200, 4020)),
    ]


@pytest.mark.parametrize(("flops", "share"), [("6ND", 1), ("exact", 2)])
def test_iso_flop_points_spend_their_budget_and_no_ratio_is_beyond_what_is_allowed(flops, share):
    design = IsoFLOP(
        parameters=(100.0, 1_000.0),
        budgets=(6e6, 6e7),
        flops=flops,
        tokens_per_parameter=(1.0, 600.0),
    )
    found = {(p.parameters, p.budget): p.tokens for p in design.list_points(make_model)}
    wanted = {(100, 6e6): 1e4, (100, 6e7): 1e5, (1_000, 6e6): 1e3, (1_000, 6e7): 1e4}
    within = {key: d / share for key, d in wanted.items() if 1 <= d / share / key[0] <= 600}
    assert found == pytest.approx(within)
    assert (100, 6e7) in found if share == 2 else (100, 6e7) not in found


def test_points_are_those_that_were_given():
    design = Points(pairs=((200.0, 1e3), (100.0, 2e3), (200.0, 1e3)))
    assert design.list_points(make_model) == (DesignPoint(100, 2e3), DesignPoint(200, 1e3))
    with pytest.raises(ConfigError, match="one size of model"):
        build_sweep(kind="Points", pairs=[[100, 1e3], [100, 2e3]])


def test_a_single_size_is_rejected_with_an_alternative():
    with pytest.raises(ConfigError, match="model, 100 parameters"):
        build_sweep(kind="Grid", parameters=[100], tokens=[1e3])


def test_a_design_without_a_point_is_refused():
    design = IsoFLOP(parameters=(1e3, 2e3), budgets=(6e3,))
    with pytest.raises(ConfigError, match="within tokens_per_parameter"):
        design.list_points(make_model)
