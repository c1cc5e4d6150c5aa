"""Batch settings of the run file and their result: each token exactly once, with any stages."""

import collections
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from pydantic import ValidationError
from support.shards import write_shard

from trainrig.config import build
from trainrig.errors import ConfigError
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.rows import window_order
from trainrig.tokens.rows.batch_stages import BatchRamp, BatchSettings, BatchStage
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards

BASE = {"news": 10_000, "web": 20_000, "wiki": 30_000}  # the first id of each source


def write(folder: Path, **tokens: int) -> TokenShards:
    documents = [
        EncodedDocument(source, source, "u", BASE[source] + np.arange(count), 1, "f", 0)
        for source, count in tokens.items()
    ]
    write_shard(str(folder), "0", ShardVocabulary(60_000, "tokenizer"), documents)
    return TokenShards.open(str(folder))


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> TokenShards:
    return write(tmp_path_factory.mktemp("shards"), news=70, web=203, wiki=131)


def settings(**changed: object) -> BatchSettings:
    table = {"sequence_length": 4, "global_batch": 6, "micro_batch": 2, "epochs": math.inf}
    return build(BatchSettings, table | changed, "run.toml")


def list_trained(batches: PretrainBatches, steps: int) -> list[int]:
    """Return all targets in training order."""
    found: list[int] = []
    for step in range(steps):
        of_step = [t for m in batches.at(step) for t in m.targets.ravel().tolist() if t != IGNORE]
        assert batches.targets(step) == len(of_step)
        found += of_step
    return found


weights = st.fixed_dictionaries({source: st.integers(0, 5) for source in BASE}).filter(
    lambda shares: any(shares.values())
)
stage_plans = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "weights": weights,
            "sequence_length": st.sampled_from([4, 8, 16]),
            "global_batch": st.sampled_from([2, 6, 8]),
        },
    ),
    max_size=4,
)


def in_order(plan: list[dict[str, object]], apart: list[int]) -> tuple[dict[str, object], ...]:
    steps = np.cumsum(apart).tolist()
    return tuple({"from_step": at} | stage for at, stage in zip(steps, plan, strict=False))


@pytest.mark.slow
@tries(max_examples=25, deadline=None)
@given(
    stage_plans,
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.sampled_from([1, 2, 256]),
    st.integers(0, 99),
)
def test_each_target_comes_exactly_once_an_epoch_through_any_stages(
    shards, plan, apart, group, seed
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_order, "GROUP", group)
        stages = in_order(plan, apart)
        chosen = settings(
            stages=stages, seed=seed, base_sequence_length=4, longest_sequence_length=16
        )
        batches = PretrainBatches(shards, chosen)
        targets = list_trained(batches, sum(apart) + 12)
    for source, base in BASE.items():
        of = [t - base for t in targets if base <= t < base + 10_000]
        # The first id of a source is no target, nor are ids after its last whole 16.
        epoch = range(1, (shards.tokens(source) - 1) // 16 * 16 + 1)
        for begin in range(0, len(of), len(epoch)):
            part = of[begin : begin + len(epoch)]
            assert len(set(part)) == len(part)
            assert set(part) <= set(epoch)
        assert shards.tokens(source) - 1 - len(epoch) < 16


@pytest.mark.slow
@tries(max_examples=20, deadline=None)
@given(stage_plans.filter(bool), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_samples_before_a_stage_do_not_depend_on_it(shards, plan, apart):
    room = {"base_sequence_length": 4, "longest_sequence_length": 16}
    stages = in_order(plan, apart)
    whole = PretrainBatches(shards, settings(stages=stages, **room))
    shorter = PretrainBatches(shards, settings(stages=stages[:-1], **room))
    begins = stages[-1]["from_step"]
    assert list_trained(whole, begins) == list_trained(shorter, begins)
    assert whole.data_before(begins) == shorter.data_before(begins)
    if stages[-1].keys() & {"global_batch"}:
        return
    assert whole.data_before(begins + 1) != shorter.data_before(begins + 1)


@tries(max_examples=20, deadline=None)
@given(stage_plans, st.lists(st.integers(1, 9), min_size=4, max_size=4), st.data())
def test_any_step_of_any_stage_can_be_had_first(shards, plan, apart, data):
    chosen = settings(
        stages=in_order(plan, apart), base_sequence_length=4, longest_sequence_length=16
    )
    step = data.draw(st.integers(0, sum(apart) + 5))
    in_turn = PretrainBatches(shards, chosen)
    for earlier in range(step):
        in_turn.at(earlier)
    for one, other in zip(in_turn.at(step), PretrainBatches(shards, chosen).at(step), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.targets.tolist() == other.targets.tolist()


def test_a_stage_changes_only_its_settings(shards):
    batches = PretrainBatches(
        shards,
        settings(
            weights={"news": 0, "web": 1, "wiki": 1},
            stages=(
                {"from_step": 2, "sequence_length": 8},
                {"from_step": 3, "global_batch": 4, "micro_batch": 4},
                {"from_step": 5, "weights": {"news": 1, "web": 0, "wiki": 0}},
            ),
        ),
    )
    shapes = [[micro.ids.shape for micro in batches.at(step)] for step in range(6)]
    assert shapes == [[(2, 4)] * 3] * 2 + [[(2, 8)] * 3] + [[(4, 8)]] * 3
    samples = [s for step in range(6) for m in batches.at(step) for s in m.samples.tolist()]
    assert samples == list(range(18 + 12))  # consecutive numbers
    sources = [
        {batches.sources[number] for micro in batches.at(step) for number in micro.sources}
        for step in range(6)
    ]
    assert sources == [{"web", "wiki"}] * 5 + [{"news"}]
    assert [batches.timeline.find_step(sample) for sample in (0, 11, 12, 17, 18, 29)] == [
        0, 1, 2, 2, 3, 5,
    ]  # fmt: skip


def test_rows_of_a_longer_stage_are_aligned_text(shards):
    batches = PretrainBatches(shards, settings(stages=({"from_step": 9, "sequence_length": 16},)))
    for step in range(9, 20):
        for micro in batches.at(step):
            assert (np.diff(micro.ids, axis=1) == 1).all()
            assert set((micro.ids[:, 0] % 10_000 % 16).tolist()) == {0}


def test_the_positions_of_a_run_are_summed_over_its_stages():
    chosen = settings(
        stages=(
            {"from_step": 10, "sequence_length": 8},
            {"from_step": 20, "global_batch": 12},
        )
    )
    assert chosen.count_positions(5) == 5 * 24
    assert chosen.count_positions(25) == 10 * 24 + 10 * 48 + 5 * 96


def test_shares_hold_over_stages_to_within_a_sample(shards):
    """Change weights three times, each time leaving fractions behind, without a zero weight."""
    mixes = [{"news": 1, "web": 3, "wiki": 3}, {"news": 2, "web": 1, "wiki": 8}]
    stages = tuple({"from_step": 5 * number, "weights": mixes[number % 2]} for number in (1, 2, 3))
    batches = PretrainBatches(shards, settings(weights=mixes[0], stages=stages))
    had: collections.Counter[str] = collections.Counter()
    due = dict.fromkeys(BASE, 0.0)
    for step in range(20):
        mix = mixes[step // 5 % 2]
        for micro in batches.at(step):
            for number in micro.sources:
                had[batches.sources[number]] += 1
                for source, weight in mix.items():
                    due[source] += weight / sum(mix.values())
                    assert had[source] - due[source] < 1 + 1e-9
                    assert due[source] - had[source] < 2
    assert all(abs(due[source] - had[source]) < 1 for source in BASE)


# --- epochs


def test_a_run_within_its_caps_reports_its_epochs(shards):
    batches = PretrainBatches(shards, settings(weights={"news": 1, "web": 1, "wiki": 0}))
    read = batches.check_epochs(10)  # 30 rows each of 17 and 50 windows
    assert read == pytest.approx({"news": 30 / 17, "web": 30 / 50})


def test_a_run_beyond_a_cap_is_refused_with_a_suggestion(shards):
    mix = {"news": 1, "web": 1, "wiki": 0}
    batches = PretrainBatches(shards, settings(weights=mix, epochs={"news": 1}))
    with pytest.raises(ConfigError) as refusal:
        batches.check_epochs(10)
    assert str(refusal.value) == (
        "batches: source 'news' would be read 1.76 times in 10 steps, beyond its cap of 1 epochs; "
        "train for 5 steps or fewer, give it less weight (about 0.2833 of the samples, not 0.5), "
        'set epochs.news = 1.77, or set when_exhausted = "renormalise"'
    )
    batches.check_epochs(5)
    with pytest.raises(ConfigError, match=r"read 1\.06 times in 6 steps"):
        batches.check_epochs(6)
    PretrainBatches(shards, settings(weights=mix, epochs={"news": 1.77})).check_epochs(10)
    lighter = {"news": 0.2833, "web": 0.7167, "wiki": 0}
    PretrainBatches(shards, settings(weights=lighter, epochs={"news": 1})).check_epochs(10)


def test_the_default_cap_is_four_epochs(shards):
    table = {"sequence_length": 4, "global_batch": 6, "micro_batch": 2}
    batches = PretrainBatches(shards, build(BatchSettings, table, "run.toml"))
    assert (17 + 50 + 32) * 4 == 396
    assert batches.check_epochs(66) == {"news": 4, "web": 4, "wiki": 4}
    with pytest.raises(ConfigError, match=r"cap of 4 epochs.*66 steps"):
        batches.check_epochs(67)


def test_a_cap_counts_across_stages(shards):
    stages = ({"from_step": 4, "sequence_length": 16, "weights": {"news": 1, "web": 0, "wiki": 0}},)
    mix = {"news": 1, "web": 2, "wiki": 0}
    batches = PretrainBatches(shards, settings(weights=mix, stages=stages, epochs=1))
    # news has 16 windows in 4 blocks, 8 of them in the first 4 steps.
    assert batches.check_epochs(4)["news"] == pytest.approx(8 / 16)
    with pytest.raises(ConfigError, match="'news' would be read"):
        batches.check_epochs(5)


def test_a_used_up_source_leaves_its_samples_to_the_others(shards):
    mix = {"news": 2, "web": 1, "wiki": 1}
    batches = PretrainBatches(shards, settings(weights=mix, epochs=1, when_exhausted="renormalise"))
    end = batches.timeline.end
    assert end == 17 + 50 + 32
    drawn = [batches.locate(sample) for sample in range(end)]
    assert {(sample.source, sample.window) for sample in drawn} == {
        *(("news", w) for w in range(17)),
        *(("web", w) for w in range(50)),
        *(("wiki", w) for w in range(32)),
    }
    assert {sample.epoch for sample in drawn} == {0}
    last_of_news = max(n for n, sample in enumerate(drawn) if sample.source == "news")
    assert last_of_news in (32, 33)  # at half of the samples
    after = collections.Counter(sample.source for sample in drawn[last_of_news + 1 :][:40])
    assert abs(after["web"] - after["wiki"]) <= 1
    # Until a source is used up, the order is the same as without a cap.
    plain = PretrainBatches(shards, settings(weights=mix))
    assert [plain.locate(s).source for s in range(32)] == [sample.source for sample in drawn[:32]]


def test_when_all_sources_are_used_up_the_error_has_the_number_of_steps(shards):
    batches = PretrainBatches(shards, settings(epochs=1, when_exhausted="renormalise"))
    assert batches.check_epochs(16) == pytest.approx(dict.fromkeys(BASE, 16 * 6 / 99), rel=0.1)
    with pytest.raises(ConfigError, match=r"after 16 whole steps, but training.steps.*17"):
        batches.check_epochs(17)
    for ask in (batches.targets, batches.at):
        ask(15)
        with pytest.raises(ConfigError, match=r"step 0 \(news, web, wiki\).*up after 16"):
            ask(16)


def test_the_stage_whose_sources_are_used_up_is_named_with_them(shards):
    stages = ({"from_step": 3, "weights": {"news": 1, "web": 0, "wiki": 1}},)
    batches = PretrainBatches(
        shards, settings(weights=BASE, stages=stages, epochs=1, when_exhausted="renormalise")
    )
    sources = r"all sources with weight in the stage from step 3 \(news, wiki\)"
    with pytest.raises(
        ConfigError, match=f"{sources} reach their caps of epochs after 9 whole ste"
    ):
        batches.check_epochs(50)
    with pytest.raises(ConfigError, match=f"{sources} are used up after 9 whole steps; train for"):
        batches.at(50)


@tries(max_examples=20, deadline=None)
@given(weights, stage_plans, st.integers(1, 9), st.floats(0.3, 2.5))
def test_no_source_is_read_beyond_its_cap_and_none_ends_before_it(shards, first, plan, apart, cap):
    chosen = settings(
        weights=first,
        stages=in_order(plan, [apart] * 4),
        base_sequence_length=4,
        longest_sequence_length=16,
        epochs=cap,
        when_exhausted="renormalise",
    )
    batches = PretrainBatches(shards, chosen)
    end = batches.timeline.end
    assert end is not None
    steps = batches.timeline.find_step(end)
    counts = collections.Counter(t // 10_000 * 10_000 for t in list_trained(batches, steps))
    limits = {b: math.floor(cap * ((shards.tokens(s) - 1) // 16 * 4)) for s, b in BASE.items()}
    assert all(counts[base] <= 4 * limits[base] for base in limits)
    read = batches.timeline.count_epochs_read(end)
    last = batches.timeline.find_stage(steps)
    for source, epochs in read.items():
        if (last.weights or {}).get(source):
            windows = (shards.tokens(source) - 1) // 16 * 4
            # Less than one more row of the source was left.
            assert limits[BASE[source]] - epochs * windows < last.sequence_length // 4


# --- invalid settings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stages": ({"from_step": 0},)}, "greater than or equal to 1"),
        ({"stages": ({"from_step": 3}, {"from_step": 3})}, "from_step 3 follows from_step 3"),
        ({"stages": ({"from_step": 3, "micro_batch": 4},)}, r"from step 3: .*\(6 .* above: 8"),
        ({"stages": ({"from_step": 3, "weights": {"web": 0}},)}, "weights: no weight is above 0"),
        ({"stages": ({"from_step": 3, "sequence_length": 6},)}, "6 is not a multiple of .* 4"),
        ({"longest_sequence_length": 6}, r"\(6\) is not a multiple of .* 4; the nearest above: 8"),
        ({"base_sequence_length": 3}, r"4 is.*window of 3"),
        (
            {"packing": {"kind": "BestFit"}, "stages": ({"from_step": 3, "sequence_length": 8},)},
            r"packing BestFit.*plan.*4 to 8",
        ),
        ({"epochs": 0}, "greater than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed, message):
    with pytest.raises((ValidationError, ConfigError), match=message):
        settings(**changed)


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        (-1, "should be a number greater than 0, or a table of numbers by source, found -1"),
        (math.nan, "should be a number greater than 0, or a table of numbers by source, found nan"),
        (True, "should be a number greater than 0, or a table of numbers by source, found True"),
        ("4", "should be a number greater than 0, or a table of numbers by source, found '4'"),
        ({"web": 1, "wiki": 0}, "of 'wiki' should be a number greater than 0, found 0"),
    ],
)
def test_impossible_caps_are_refused_in_one_message(epochs, message):
    with pytest.raises(ConfigError) as refused:
        settings(epochs=epochs)
    assert str(refused.value) == f"run.toml: epochs: {message}"


def test_weights_of_a_stage_that_do_not_fit_the_sources_are_refused_by_its_step(shards):
    stages = ({"from_step": 3, "weights": {"web": 1, "wikki": 1}},)
    with pytest.raises(ConfigError, match=r"step 3: weights.*'wikki'.*'wiki'"):
        PretrainBatches(shards, settings(stages=stages))


def test_caps_of_missing_sources_are_refused(shards):
    with pytest.raises(ConfigError, match=r"epochs.*no source 'wikki'.*'wiki'"):
        PretrainBatches(shards, settings(epochs={"wikki": 2}))


def ramped(**changes):
    given = {"start": 2, "increment": 2, "steps": 9} | changes.pop("ramp", {})
    return BatchSettings(
        sequence_length=4, global_batch=8, micro_batch=2, ramp=BatchRamp(**given), **changes
    )


def test_a_ramp_grows_the_batch_in_equal_steps_to_its_size():
    stages = ramped().resolve_stages()
    assert [(s.from_step, s.global_batch) for s in stages] == [(0, 2), (3, 4), (6, 6), (9, 8)]
    assert [s.first_sample for s in stages] == [0, 6, 18, 36]
    assert ramped().count_positions(10) == (36 + 8) * 4


def test_other_changes_may_come_within_a_ramp_and_other_sizes_after_it():
    weights = {"a": 1.0}
    settings = ramped(
        stages=(
            BatchStage(from_step=4, weights=weights),
            BatchStage(from_step=6, sequence_length=8),
            BatchStage(from_step=9, global_batch=16),
        )
    )
    found = [(s.from_step, s.global_batch, s.sequence_length) for s in settings.resolve_stages()]
    assert found == [(0, 2, 4), (3, 4, 4), (4, 4, 4), (6, 6, 8), (9, 16, 8)]
    assert [s.weights for s in settings.resolve_stages()] == [None, None, weights, weights, weights]


@pytest.mark.parametrize(
    ("ramp", "stages", "message"),
    [
        ({"increment": 4}, (), r"start \(2\) cannot reach global_batch \(8\) in increments of 4"),
        ({"start": 8}, (), r"start \(8\) cannot reach global_batch \(8\)"),
        ({"start": 5, "increment": 3}, (), "multiples of micro_batch"),
        ({"steps": 2}, (), r"3 increments.*fit in 2 steps.*3"),
        ({}, ({"from_step": 5, "global_batch": 4},), "step 5 sets"),
    ],
)
def test_ramps_that_cannot_work_are_refused(ramp, stages, message):
    with pytest.raises(ValueError, match=message):
        ramped(ramp=ramp, stages=tuple(BatchStage(**stage) for stage in stages))
