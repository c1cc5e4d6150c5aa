"""Plans of proxy runs: their draws, their limits, and input that cannot work."""

import math
import re

import numpy as np
import pytest
from support.shards import write_shard

from trainrig import config
from trainrig.check import describe
from trainrig.errors import ConfigError, DataError, InputError
from trainrig.scaling.mixture import proxy_trials
from trainrig.scaling.mixture.mixture_run_file import MixtureFinding
from trainrig.scaling.mixture.proxy_trials import ProxyTrials
from trainrig.scaling.sweep.trials import build_run_file
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary
from trainrig.train.pretrain import prepare


@pytest.fixture
def make_finding(tokens, tmp_path):
    """Return `make_finding("out", runs=7)`: a search on the usual tokens of two sources."""

    def make(output: str = "mix", runs: int = 6, **changes) -> MixtureFinding:
        given = {
            "tokens": tokens,
            "output": str(tmp_path / output),
            "proxy": {"parameters": 6_000, "tokens": 1_500, "runs": runs},
            "batches": {"sequence_length": 32, "micro_batch": 4},
            "training": {"fewest_steps": 6},
        }
        return config.build(MixtureFinding, given | changes, "mixture.toml")

    return make


def test_more_runs_keep_the_earlier_ones_and_another_seed_draws_others(make_finding):
    few = ProxyTrials.plan(make_finding(runs=6)).list_drawn()
    many = ProxyTrials.plan(make_finding(runs=9)).list_drawn()
    assert many[:6] == few
    other = ProxyTrials.plan(make_finding(runs=6, seed=1)).list_drawn()
    assert {trial.seed for trial in other}.isdisjoint(trial.seed for trial in few)
    assert [trial.weights for trial in other] != [trial.weights for trial in few]


def test_no_two_runs_share_a_seed_unless_they_confirm(make_finding):
    planned = ProxyTrials.plan(make_finding(runs=30))
    weights = {"books": 0.25, "web": 0.75}
    drawn = planned.list_drawn()
    proposed = planned.list_confirmations("proposed", weights)
    natural = planned.list_confirmations("natural", planned.natural)
    assert len({trial.seed for trial in [*drawn, *proposed]}) == 30 + 3
    assert [trial.seed for trial in natural] == [trial.seed for trial in proposed]
    assert len({trial.name for trial in [*drawn, *proposed, *natural]}) == 36
    again = planned.list_confirmations("proposed", {"books": 0.26, "web": 0.74})
    assert {trial.name for trial in again}.isdisjoint(trial.name for trial in proposed)


def test_draws_are_shares_around_those_of_the_tokens(make_finding):
    planned = ProxyTrials.plan(make_finding(runs=200))
    drawn = [trial.weights for trial in planned.list_drawn()]
    assert all(math.fsum(weights.values()) == pytest.approx(1, abs=1e-9) for weights in drawn)
    books = np.array([weights["books"] for weights in drawn])
    assert books.mean() == pytest.approx(planned.natural["books"], abs=0.05)
    assert books.min() < 0.2 and books.max() > 0.8


@pytest.mark.parametrize("epochs", [0.35, 0.5])
def test_pretraining_accepts_every_drawn_mixture_within_its_epochs(make_finding, epochs):
    """A run of a quarter of all tokens cannot be of one source, if that passes its epochs."""
    run = make_finding(runs=20, batches={"sequence_length": 32, "micro_batch": 4, "epochs": epochs})
    planned = ProxyTrials.plan(run)
    trials = planned.list_drawn()
    trials += planned.list_confirmations("uniform", planned.list_confirmed({})["uniform"])
    assert min(planned.epoch_limits.values()) < 1
    for trial in trials:
        prepare(build_run_file(planned.sweep, trial, trial.trunk, planned.data))
        shares = np.array(list(trial.weights.values()))
        assert (shares <= np.array(list(planned.epoch_limits.values())) + 1e-4).all()


def test_check_counts_all_runs(make_finding):
    run = make_finding(runs=8, confirm=2)
    facts = describe(run)
    assert facts["runs"] == 8 + 3 * 2
    one = describe(make_finding(runs=6, confirm=0))
    assert facts["flops"] == pytest.approx(one["flops"] * 14 / 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"targets": {"books": 0.5, "wab": 0.5}},
            r"no source 'wab'; did you mean 'web'",
        ),
        ({"targets": {"books": 0.5, "web": 0.6}}, r"targets: the weights sum to 1.1, not to 1"),
        ({"targets": {"books": 0.0}}, r"targets\.books.* greater than 0"),
        ({"runs": 5}, r"proxy.runs: 5 runs of 2 sources, but a regression needs 6 or more"),
        ({"confirm": 1}, "confirm: one seed says nothing about the noise"),
        ({"search": {"at_most": {"wob": 0.5}}}, "at most: no source 'wob'; did you mean 'web'"),
        ({"search": {"at_most": {"web": 0.5, "books": 0.4}}}, "limits of all sources sum to 0.9"),
        ({"search": {"at_most": {"web": 20}}}, "at most: web = 20; choose a share from 0 to 1"),
        ({"search": {"best": 50_000}}, "best: 50,000 of 50,000 candidates are not the best"),
        ({"trials": {"instance": "any"}}, "trials.instance: the command counts no costs"),
        (
            {"proxy": {"parameters": 6_000, "tokens": 40, "runs": 6}},
            "^proxy.tokens: 40 tokens .* too few .*; raise proxy.tokens, or lower",
        ),
        (
            {"proxy": {"parameters": 6_000, "tokens": 1e9, "runs": 6}},
            "^proxy.tokens: 1,000,000,000 tokens of one run, but batches.epochs = 4 passes",
        ),
        ({"method": "MixingLaws"}, "method.*'MixingLaw'"),
        ({"batches": {"weights": {"web": 1}}}, "batches.weights: the command draws the weights"),
    ],
)
def test_input_that_cannot_work_is_refused_in_one_line(make_finding, changes, message):
    with pytest.raises((ConfigError, DataError), match=message) as refused:
        ProxyTrials.plan(make_finding(**changes))
    assert "\n" not in str(refused.value)


def test_epochs_that_just_suffice_for_no_mixture_are_explained(make_finding):
    """A few rows of rounding are lacking, not a limit that the user has set."""
    natural = ProxyTrials.plan(make_finding())
    epochs = natural.base.trunk.tokens / natural.data.unique_tokens * 1.001
    batches = {"sequence_length": 32, "micro_batch": 4, "epochs": epochs}
    with pytest.raises(ConfigError, match=r"^proxy.tokens: 1,500 .*; set [\d,]+ or fewer") as told:
        ProxyTrials.plan(make_finding(batches=batches))
    most = int(re.search(r"set ([\d,]+) or", str(told.value))[1].replace(",", ""))
    proxy = {"parameters": 6_000, "tokens": most, "runs": 6}
    ProxyTrials.plan(make_finding(batches=batches, proxy=proxy, training={"fewest_steps": 2}))


def test_the_limits_of_epochs_count_the_rows_that_pretraining_reads(make_finding, tmp_path):
    """The id after the last position of a row is part of no other: 64 tokens are one row of 32."""
    folder = write_tokens(tmp_path / "exact", web=(64_000, 90), books=(64, 90))
    run = make_finding(tokens=folder)
    base = ProxyTrials.plan(make_finding()).base
    planned = ProxyTrials(run, run.build_sweep(), None, base, {"books": 0.001, "web": 0.999})
    samples = base.trunk.steps * base.batch
    assert planned.epoch_limits["books"] * samples <= 4 * 1


def write_tokens(folder, **counts: tuple[int, int]) -> str:
    """Write shards of sources with their numbers of tokens in both splits."""
    for split, index in (("train", 0), ("held_out", 1)):
        write_shard(
            str(folder / split),
            "a",
            ShardVocabulary(300, "f"),
            [
                EncodedDocument(s, s, "", np.ones(count[index], int), 1, "f", 0)
                for s, count in counts.items()
                if count[index]
            ],
        )
    return str(folder)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"web": (900, 90)}, "only one source, 'web', so there is nothing to weigh"),
        (
            {"web": (900, 90), "books": (20, 9)},
            "source 'books' has 20 tokens, and 33 or more are needed; add text to it",
        ),
        (
            {"web": (900, 90), "books": (900, 0)},
            "held out: source 'books' has 0 tokens, and 2 or more are needed",
        ),
    ],
)
def test_tokens_that_cannot_be_weighed_are_refused(make_finding, tmp_path, counts, message):
    run = make_finding(tokens=write_tokens(tmp_path / "few", **counts))
    with pytest.raises(InputError, match=message):
        proxy_trials._check_sources(run)
