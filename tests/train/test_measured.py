"""Optional measurements of a run, which change nothing."""

import pytest

from trainrig import hardware
from trainrig.flops import count_token_flops
from trainrig.train.held_out_loss import Metrics
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

ALL = {"every": 1, "layers_every": 1}
NONE = {"every": 0, "layers_every": 0}
EXACT = ("train/loss", "train/grad_norm", "train/lr", "train/tokens")


@pytest.fixture(scope="module")
def measured(ranks, make_job, tmp_path_factory):
    """Return `measured[world]`: runs with every measurement, and one with none."""
    jobs = {}
    for world, settings in ((1, ALL), (2, ALL), (0, NONE)):
        folder = tmp_path_factory.mktemp(f"measured-{world}")
        job = jobs[world] = make_job(folder, training={"steps": 6, "metrics": settings})
        attempt = RunFolder(job.folder).take_attempt(0)
        ranks(world or 1, "train", job=job, attempt=attempt)
    return jobs


@pytest.mark.slow
def test_all_of_it_changes_no_bit_of_the_run(measured, last_weights):
    def exact(job):
        return [[line[name] for name in EXACT] for line in metrics.read_series(job.folder)]

    assert exact(measured[1]) == exact(measured[0])
    assert last_weights(measured[1]) == last_weights(measured[0])


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_the_layers_norms_make_up_the_whole_gradients(world, measured):
    for line in metrics.read_series(measured[world].folder):
        for kind in ("layers", "kinds"):
            parts = [
                value**2
                for name, value in line.items()
                if name.startswith(f"{kind}/") and name.endswith("/grad_norm")
            ]
            if kind == "layers":  # the embedding and the last norm belong to no layer
                names = ("embedding", "norm")
                whole = line["train/grad_norm"] ** 2
                assert 0 < sum(parts) < whole + 1e-9
                assert all(f"kinds/{name}/grad_norm" in line for name in names)
            else:
                assert sum(parts) ** 0.5 == pytest.approx(line["train/grad_norm"], rel=1e-5)


def test_figures_are_the_same_at_any_number_of_ranks_to_rounding(measured):
    one, two = (metrics.read_series(measured[world].folder) for world in (1, 2))
    for mine, other in zip(one, two, strict=True):
        for name in mine:
            if name.startswith(("layers/", "kinds/", "noise/", "train/loss_variance")):
                assert other[name] == pytest.approx(mine[name], rel=1e-4), name


ACTIVATIONS = ("activation_rms", "activation_max", "saturated", "attention_entropy")


def test_activations_are_measured_by_layer(measured):
    one, two = (metrics.read_series(measured[world].folder) for world in (1, 2))
    for mine, other in zip(one, two, strict=True):
        for name in ACTIVATIONS:
            found = [mine[n] for n in mine if n.startswith("layers/") and n.endswith(name)]
            assert len(found) == len([n for n in mine if n.endswith("/weight_norm")]) - len(
                [n for n in mine if n.startswith("kinds/") and n.endswith("/weight_norm")]
            )
        # The first micro-batch on whichever rank; in the first step the weights are the same bits.
        shared = {n: mine[n] for n in mine if n.endswith(ACTIVATIONS)}
        assert shared == {n: other[n] for n in shared}


def test_the_variance_is_that_of_the_micro_batches(measured):
    for line in metrics.read_series(measured[1].folder):
        assert 0 < line["train/loss_variance"] < line["train/loss"] ** 2
    exact = [
        [line["train/loss_variance"] for line in metrics.read_series(measured[world].folder)]
        for world in (0, 1, 2)
    ]
    assert exact[0] == exact[1] == exact[2]


def test_utilisation_is_the_models_flops_over_the_peak(measured):
    offers = hardware.load()
    job = measured[2].folder
    device = offers.devices[hardware.identify_local_device(offers)]
    for line in metrics.read_series(job):
        of_a_target = count_token_flops(measured[2].model, 32).training
        expected = of_a_target * line["train/tokens_per_second"] / (2 * device.find_peak("float32"))
        assert line["train/mfu"] == pytest.approx(expected, rel=1e-6)


def test_every_figure_is_in_the_table_and_shares_are_shares(measured):
    (*_, line) = metrics.read_series(measured[2].folder)
    assert {"noise/trace", "cluster/slowest_rank", "memory/peak_gib"} <= set(line)
    shares = [value for name, value in line.items() if name.startswith("time/")]
    assert len(shares) == 5 and 0.3 < sum(shares) <= 1.01
    none = metrics.read_series(measured[0].folder)[-1]
    assert not [n for n in none if n.startswith(("layers/", "noise/", "memory/", "cluster/slow"))]


def test_due_is_each_nth_step_or_never():
    settings = Metrics(every=3, layers_every=0)
    assert [step for step in range(1, 10) if settings.due(step)] == [3, 6, 9]
    assert not any(settings.layers_due(step) for step in range(1, 10))
