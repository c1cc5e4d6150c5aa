"""Context extension by stages, and continued pretraining that reports forgetting."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from trainrig.check import describe
from trainrig.config import build, to_toml
from trainrig.errors import ConfigError, DataError
from trainrig.flops import count_token_flops
from trainrig.models.decoder import Decoder
from trainrig.tokens.batches import IGNORE
from trainrig.train import checkpoint
from trainrig.train.pretrain import prepare, pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_report.run_page import build_run_page, read_report_data

YARN = {"kind": "YaRN", "factor": 4.0, "original_positions": 48}
LONG = {"from_step": 3, "positions": 192, "rope": {"scaling": YARN}}
STAGES = {
    "sequence_length": 32,
    "global_batch": 8,
    "micro_batch": 2,
    "stages": [
        {"from_step": 3, "sequence_length": 128, "global_batch": 2, "micro_batch": 1},
        {"from_step": 6, "weights": {"books": 1.0, "web": 0.0}},  # annealing: another mixture
    ],
}
TRAINING = {"steps": 8, "checkpoints": {"every": 3, "keep": 9}, "held_out": {"every": 4, "rows": 2}}


def set_context(run, context, batches=None, **more):
    parts = {"context": context, "batches": batches or STAGES, **more}
    return build(Pretraining, run.model_dump(mode="json", exclude_none=True) | parts, "run.toml")


@torch.no_grad()
def compute_loss(model, batch):
    nats = targets = 0
    for micro in batch:
        ids_BT = torch.from_numpy(micro.ids)
        targets_BT = torch.from_numpy(micro.targets)
        assert ids_BT.shape[1] == 128
        logits_NV = model(ids_BT).logits.flatten(0, 1).double()
        nats += float(
            functional.cross_entropy(
                logits_NV, targets_BT.flatten(), ignore_index=IGNORE, reduction="sum"
            )
        )
        targets += int((targets_BT != IGNORE).sum())
    return nats / targets


@pytest.fixture(scope="module")
def extended(ranks, make_run, tmp_path_factory):
    """Return the job of a run whose sequences and angles change at step 3."""
    base = make_run(tmp_path_factory.mktemp("extended"), training=TRAINING)
    run = set_context(base, [LONG])
    job = prepare(run)
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    Path(job.folder, "run.toml").write_text(to_toml(run))
    return run, job


@pytest.mark.slow
def test_each_step_is_trained_with_the_positions_of_its_stage(extended):
    _, job = extended
    there = {
        step: checkpoint.open_model(f"{job.folder}/checkpoints/step_{step:08d}")
        for step in (3, 6, 8)
    }
    assert there[3].config == job.model and job.model.positions == 48
    for step in (6, 8):
        config = there[step].config
        assert config.positions == 192
        assert config.position_embedding.scaling.model_dump() | YARN == (
            config.position_embedding.scaling.model_dump()
        )
    with pytest.raises(ValueError, match=r"128 tokens.*only 48 positions"):
        there[3].build()(torch.zeros(1, 128, dtype=torch.int64))
    # The loss of step 4, by the weights before it, with the new angles and with the old.
    lines = {line["step"]: line for line in metrics.read_series(job.folder)}
    plain = there[3].config.model_copy(update={"positions": 192})
    losses = {"new": there[6].config, "old": plain}
    for name, config in losses.items():
        model = Decoder(config)
        model.load_state_dict(there[3].weights)
        losses[name] = compute_loss(model, job.make_batches().at(3))
    # After three steps angles matter little yet: 5e-5 nats, of which rounding is a small part.
    off = {name: abs(lines[4]["train/loss"] - loss) for name, loss in losses.items()}
    assert off["new"] < 0.25 * off["old"]
    annealing = [*job.make_batches().at(6), *job.make_batches().at(7)]
    assert {job.make_batches().sources[n] for m in annealing for n in m.sources} == {"books"}


@pytest.mark.parametrize(("step", "world"), [(3, 2), (6, 1)])
def test_a_restart_before_and_after_the_stage_gives_the_same_weights(
    extended, ranks, tmp_path, step, world
):
    _, job = extended
    again = dataclasses.replace(job, folder=str(tmp_path / "again"))
    attempt = RunFolder(again.folder).take_attempt(step)
    begin = f"{job.folder}/checkpoints/step_{step:08d}/attempt-0001"
    ranks(world, "train", job=again, attempt=attempt, resume_from=begin)
    mine, theirs = (checkpoint.open_model(run.folder).weights for run in (again, job))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_stages_ahead_may_be_edited_and_those_behind_may_not(extended, make_run):
    run, _ = extended
    at_6 = f"{run.output}/checkpoints/step_00000006/attempt-0001"
    entries = checkpoint.read_entries(at_6)
    # A checkpoint of a version without this key fits, because the default is not written.
    assert all("pattern" not in stage["position_embedding"] for stage in entries["context"])

    def check(*context):
        checkpoint.check_context(at_6, entries, prepare(set_context(run, list(context))))

    check(LONG, {"from_step": 7, "positions": 256})
    with pytest.raises(ConfigError, match=r"other \[\[context\]\] stages.*from_step"):
        check(LONG | {"from_step": 2})
    with pytest.raises(ConfigError, match=r"positions: 192 there, 256 here"):
        check(LONG | {"positions": 256})


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ([], r"sequence_length \(128 tokens\) is beyond the model's 48 positions"),
        ([LONG | {"from_step": 4}], r"sequence_length \(128 tokens\) is beyond the model's 48"),
        ([{"from_step": 3}], "step 3: nothing changes"),
        ([LONG | {"from_step": 0}], r"without `continue_from`"),
        ([LONG, LONG], r"step 3 after.*step 3"),
    ],
)
def test_a_context_that_cannot_work_is_refused_by_the_run_file(make_run, context, said):
    with pytest.raises(ConfigError, match=said):
        set_context(make_run("unused"), context)


@pytest.mark.parametrize(
    ("embedding", "stage", "said"),
    [
        ("LearnedPositions", {"positions": 128}, "48 positions and none"),
        ("Alibi", {"rope": {"theta": 1e6}}, r"set, but model.position_embedding is Alibi"),
    ],
)
def test_positions_that_have_no_angles_are_not_turned(make_run, embedding, stage, said):
    run = make_run("unused", model={"position_embedding": {"kind": embedding}})
    with pytest.raises(ConfigError, match=said):
        set_context(run, [{"from_step": 3} | stage])


@pytest.fixture(scope="module")
def other_tokens(make_tokens, tmp_path_factory):
    """Return the same documents' tokens in another folder, as an earlier run's data."""
    return make_tokens(tmp_path_factory.mktemp("before"))


@pytest.mark.slow
def test_a_continued_run_extends_its_context_and_says_what_it_forgets(
    extended, without_ray, make_run, other_tokens, tmp_path
):
    earlier, _ = extended
    run = make_run(
        tmp_path / "continued",
        training={"steps": 4, "held_out": {"every": 4, "rows": 2}, "checkpoints": {"every": 2}},
    )
    batches = {
        "sequence_length": 256,
        "global_batch": 2,
        "micro_batch": 1,
        "weights": {"books": 9.0, "web": 1.0},  # replay of old data
        "epochs": 9,
    }
    given = {
        **{"continue_from": earlier.output, "remembered": [other_tokens]},
        **{"batches": batches, "context": [{"from_step": 0, "positions": 512}]},
    }
    whole = run.model_dump(mode="json", exclude_none=True) | given
    del whole["model"]
    continued = build(Pretraining, whole, "run.toml")
    pretrain(continued)
    assert checkpoint.open_model(continued.output).config.positions == 512
    lines = metrics.read_held_out_series(continued.output)
    assert [line["step"] for line in lines] == [0, 4]
    # The same documents and tokenizer give the same loss by either name.
    for line in lines:
        for source in ("books", "web"):
            assert line[f"eval/tokens/{source}/loss"] == line[f"eval/{source}/loss"]
        of_each = [line[f"eval/{source}/loss"] for source in ("books", "web")]
        assert min(of_each) <= line["eval/loss"] <= max(of_each)
    page = build_run_page(read_report_data(continued.output))
    assert "before the first step and at step 4" in page and "tokens/web" in page


@pytest.mark.slow
def test_replayed_data_must_have_the_same_tokenizer(make_run, make_tokens, tmp_path):
    run = make_run(tmp_path / "run")
    other = make_tokens(tmp_path / "other", entries=300)
    with pytest.raises(DataError, match=r"remembered: .*tokens of another tokenizer than"):
        prepare(run.model_copy(update={"remembered": (other,)}))


def test_a_long_context_is_planned_by_arithmetic(make_run):
    """At 128k, which no model here is trained at, memory and time are known before the start."""
    sizes = {"layers": 4, "channels": 128, "heads": 4, "vocabulary": 512, "positions": 4096}
    stages = [{"from_step": 10, "sequence_length": 131_072, "global_batch": 2}]
    batches = {"sequence_length": 4096, "global_batch": 64, "micro_batch": 1}
    context = [{"from_step": 10, "positions": 131_072, "rope": {"theta": 8e6}}]
    run = set_context(
        make_run("unused", model=sizes, training={"steps": 20}).model_copy(
            update={"tokens": "not-there"}
        ),
        context,
        batches | {"stages": stages},
    )
    facts = describe(run)
    short, long = (count_token_flops(run.model, length).training for length in (4096, 131_072))
    assert long > 5 * short
    assert facts["flops"] == 10 * 64 * 4096 * short + 10 * 2 * 131_072 * long
    before = describe(set_context(run, [], batches | {"stages": []}))
    assert facts["memory_per_device_gib"] > 10 * before["memory_per_device_gib"]
