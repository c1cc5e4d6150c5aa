"""Fallback layouts of a run that has lost workers, and the return from them."""

import dataclasses
import re

import pytest
from support.attempts import go_on
from support.compare_runs import read_step_losses
from typer.testing import CliRunner

from trainrig import config
from trainrig.cli import app
from trainrig.config import build, extract_identity, to_toml
from trainrig.errors import ConfigError
from trainrig.parallel.layout import DDP, HSDP
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.train.pretrain import prepare
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.run_file.run_files import Pretraining

RUN = {
    "stage": "pretrain",
    "tokens": "tokens",
    "output": "run",
    "workers": [1, 8],
    "model": {"layers": 4, "channels": 32, "heads": 4, "positions": 64},
    "batches": {"sequence_length": 64, "global_batch": 16, "micro_batch": 2},
}
STEPS = 12


def lay_out(**ranks):
    return {"kind": "FSDP", **{axis: {"ranks": number} for axis, number in ranks.items()}}


def build_run(workers=(1, 8), fallbacks=(), parallel=None, batches=None, **training):
    own = {"parallel": parallel or lay_out(tensor=4), "fallbacks": fallbacks, "steps": 10}
    changes = {"workers": workers, "training": own | training}
    return build(
        Pretraining, RUN | changes | {"batches": RUN["batches"] | (batches or {})}, "run.toml"
    )


def test_each_number_of_workers_has_its_layout():
    run = build_run(
        fallbacks=[{"parallel": lay_out(tensor=2), "recompute": {"kind": "Full"}}, {}],
        recompute={"kind": "Selective"},
    )
    found = {count: run.training.lay_out(count) for count in (8, 4, 2, 1)}
    assert {count: layout.parallel.describe() for count, layout in found.items()} == {
        8: "FSDP, tensor 4",
        4: "FSDP, tensor 4",
        2: "FSDP, tensor 2",
        1: "FSDP",
    }
    # A fallback without the setting recomputes as the run does.
    kinds = [layout.recompute.kind for layout in found.values()]
    assert kinds == ["Selective", "Selective", "Full", "Selective"]
    assert not any(layout.fallbacks for layout in found.values())
    run.training.check_workers(run.workers)


def test_a_run_without_any_is_as_it_was():
    run = build_run(workers=8)
    assert run.training.lay_out(8) is run.training
    assert run.training.bound_workers((4, 8)).multiples == (4,)


def test_layouts_in_words():
    assert DDP().describe() == "DDP"
    both = HSDP(replicas=2, tensor={"ranks": 2}, pipeline={"ranks": 4})
    assert both.describe() == "HSDP of 2, tensor 2, pipeline 4"


def test_fallbacks_are_no_part_of_the_runs_identity():
    """A run that waits for workers can therefore be given fallbacks."""
    assert extract_identity(build_run(workers=8)) == extract_identity(build_run(fallbacks=[{}]))


def test_a_run_file_with_them_is_read_as_it_is_written(tmp_path):
    run = build_run(fallbacks=[{"parallel": lay_out(pipeline=2)}, {}])
    path = tmp_path / "run.toml"
    path.write_text(to_toml(run))
    assert config.load(Pretraining, str(path)).training == run.training


def test_copies_of_the_model_come_and_go_together():
    """Two copies cannot share three replicas; with slices the run continues."""
    copies = {"kind": "HSDP", "replicas": 2, "tensor": {"ranks": 2}}
    run = build_run(
        workers=(2, 8),
        parallel=copies,
        fallbacks=[{"parallel": lay_out(tensor=2)}],
        deterministic=False,
    )
    bounds = run.training.bound_workers(run.workers)
    assert bounds.list_sizes() == [[4, 8], [2]]
    run.training.check_workers(run.workers)


@pytest.mark.parametrize(
    ("fallbacks", "changes", "said"),
    [
        ([lay_out(tensor=4)], {}, "fallbacks[0] needs at least 4 workers, no fewer than the 4"),
        ([{"kind": "FSDP"}, lay_out(tensor=2)], {}, "fallbacks[1] needs at least 2 workers"),
        ([lay_out(tensor=3)], {"workers": (3, 8)}, "fallbacks[0]: training.parallel.tensor.ranks"),
        (
            [lay_out(pipeline=2)],
            {"workers": (2, 8), "compile": {}},
            "remove [training.compile]",
        ),
        (
            [{"kind": "DDP", "tensor": {"ranks": 2}}],
            {"workers": (2, 8)},
            "fallbacks[0]: parallel.kind = 'DDP' with parallel.tensor adds gradients",
        ),
        ([lay_out(expert=2)], {"workers": (2, 8)}, "the model has no experts to divide"),
        (
            [{"kind": "FSDP", "context": {"kind": "Gathered", "ranks": 3}}],
            {"workers": (3, 8)},
            "fallbacks[0]: sequences of 64 tokens are not a multiple of 6",
        ),
        ([lay_out(tensor=2)], {"workers": 8}, "fallbacks[0] is never used: workers = 8"),
        (
            [lay_out(tensor=2)],
            {"workers": (1, 8)},
            "the minimum (1) is not a multiple of the replica size",
        ),
    ],
)
def test_a_layout_that_cannot_be_is_one_line(fallbacks, changes, said):
    with pytest.raises(ConfigError) as refused:
        build_run(fallbacks=[{"parallel": fallback} for fallback in fallbacks], **changes)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_an_error_of_the_run_does_not_name_a_fallback():
    with pytest.raises(ConfigError) as refused:
        build_run(fallbacks=[{}], batches={"sequence_length": 65})
    assert "sequence_length (65 tokens)" in str(refused.value)
    assert "fallbacks" not in str(refused.value)


def test_a_step_that_too_many_workers_would_share_is_refused(make_run, tmp_path):
    training = {
        "parallel": lay_out(tensor=4),
        "fallbacks": ({"parallel": {"kind": "FSDP"}},),
        "virtual_workers": 2,
    }
    model = {"kv_heads": 4}
    with pytest.raises(ConfigError, match=r"virtual_workers \(2\) is below the 3 workers"):
        prepare(make_run(tmp_path, (1, 4), training=training, model=model))
    prepare(make_run(tmp_path, (1, 4), training=training | {"virtual_workers": 3}, model=model))


def test_verbs_whose_workers_share_nothing_have_none_to_fall_back_on():
    settings = {
        "stage": "rl",
        "workers": [1, 2],
        "training": {"steps": 1, "parallel": lay_out(tensor=2), "fallbacks": [{}]},
    }
    with pytest.raises(ConfigError, match=r"training\.parallel\.tensor: `rl` needs whole layers"):
        build(ReinforcementLearning, RL | settings, "run.toml")


RL = {
    "checkpoint": "sft",
    "prompts": {"paths": ["prompts.jsonl"]},
    "output": "rl",
    "rollouts": {"prompts": 4, "micro_batch": 8},
    "rewards": [{"kind": "ExactAnswer"}],
}


TUNING = {
    "stage": "posttrain",
    "checkpoint": "base",
    "conversations": "conversations",
    "output": "tuned",
    "workers": [2, 4],
    "batches": {"sequence_length": 64, "global_batch": 16, "micro_batch": 2},
    "objective": {"kind": "KTO"},
    "training": {"steps": 10, "parallel": lay_out(tensor=4)},
}


def test_tuning_falls_back_on_what_it_can_be_trained_in():
    """The checkpoint alone has the shape of the model."""
    model = build_run(workers=8).model

    def check(**ranks):
        training = TUNING["training"] | {"fallbacks": [{"parallel": lay_out(**ranks)}]}
        build(FineTuning, TUNING | {"training": training}, "run.toml").check_layouts(model)

    check(tensor=2)
    where = r"^training\.fallbacks\[0\]: training\.parallel\.pipeline: "
    said = rf"{where}objective KTO cannot be computed in stages"
    with pytest.raises(ValueError, match=said):
        check(pipeline=2)


def test_check_lists_fallbacks_before_the_run(tmp_path):
    run = build_run(
        workers=(1, 8),
        fallbacks=[{"parallel": lay_out(tensor=2), "recompute": {"kind": "Full"}}, {}],
    )
    path = tmp_path / "run.toml"
    sized = run.model.model_copy(update={"vocabulary": 512})
    path.write_text(to_toml(run.model_copy(update={"model": sized})))
    done = CliRunner().invoke(app, ["check", str(path)])
    assert done.exit_code == 0, done.output
    first, second = (line for line in done.output.splitlines() if line.startswith("# fallback_"))
    assert re.fullmatch(
        r"# fallback_1: FSDP, tensor 2; on 2 workers; recompute Full; 0\.\d+ GiB per device", first
    )
    assert second.startswith("# fallback_2: FSDP; on 1 worker; 0.")


# --- with real ranks


@pytest.mark.parametrize("axis", ["tensor", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_a_run_that_loses_a_worker_shrinks_and_returns(
    axis, make_job, ranks, mortal_ranks, tmp_path
):
    """A replica of two workers shrinks to one, which dies in turn, and grows to two again.

    The samples equal those of an undisturbed run, and the losses up to rounding.
    """
    training = {
        "steps": STEPS,
        "parallel": lay_out(**{axis: 2}),
        "fallbacks": ({"parallel": {"kind": "FSDP"}},),
        "checkpoints": {"every": 2, "keep": 2},
        "held_out": {"every": STEPS, "rows": 4},
    }
    straight = make_job(tmp_path / "straight", (1, 2), training=training)
    go_on(straight, 2, ranks)
    (tmp_path / "run").mkdir()
    job = dataclasses.replace(straight, folder=str(tmp_path / "run"))
    go_on(job, 2, mortal_ranks, fault=(1, "die", 5))
    go_on(job, 1, mortal_ranks, fault=(0, "die", 9))
    go_on(job, 2, mortal_ranks)
    events = list(RunFolder(job.folder).read_events())
    started = [event for event in events if event["event"] == "attempt_started"]
    two = f"FSDP, {axis} 2"
    one = "FSDP"
    assert [event["layout"] for event in started] == [two, one, two]
    assert [event["step"] for event in started] == [0, 4, 8]
    changed = [event for event in events if event["event"] == "layout_changed"]
    assert [(event["before"], event["layout"]) for event in changed] == [(two, one), (one, two)]
    assert all("rounded differently" in event["bits"] for event in changed)
    found = read_step_losses(job)
    wanted = read_step_losses(straight)
    assert [step for step, _ in found] == list(range(1, STEPS + 1))
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in wanted], rel=1e-5)
    assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
        RunFolder(straight.folder)
    )
