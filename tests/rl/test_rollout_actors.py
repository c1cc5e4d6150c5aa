"""`trainrig rl` with an actor on Ray, from the run file to the model."""

import pytest

from trainrig.errors import DataError
from trainrig.rl.reinforcement_stage import reinforce
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def read_weights(folder):
    state = checkpoint.open_model(str(folder)).build().state_dict()
    return {name: value.numpy().tobytes() for name, value in state.items()}


def list_events(folder, kind):
    return [event for event in RunFolder(str(folder)).read_events() if event["event"] == kind]


def test_the_model_is_the_same_with_an_actor_as_without_also_of_adapters(make_run, tmp_path):
    changes = {"lora": {"rank": 2}, "objective": {"kind": "GRPO", "reference": {"weight": 0.1}}}
    alone, beside = (
        make_run(tmp_path / str(actors), rollouts={"actors": actors, "lag": 1}, **changes)
        for actors in (0, 1)
    )
    assert reinforce(alone).counts["steps"] == reinforce(beside).counts["steps"] == 3
    assert len(list_events(tmp_path / "1", "rollout_actor_started")) == 1
    assert not list_events(tmp_path / "1", "rollout_actor_lost")
    assert read_weights(tmp_path / "1") == read_weights(tmp_path / "0")
    lines = [metrics.read_series(str(tmp_path / name)) for name in ("0", "1")]
    kept = ("train/loss", "train/diagnostics/sampler_gap", "train/diagnostics/importance")
    assert [[line[name] for name in kept] for line in lines[0]] == [
        [line[name] for name in kept] for line in lines[1]
    ]


def test_sampling_from_another_model_than_is_trained_ends_the_run(make_run, tmp_path):
    run = make_run(tmp_path / "run", rollouts={"actors": 1, "lag": 1, "largest_gap": 1e-12})
    with pytest.raises(DataError, match=r"more than rollouts\.largest_gap"):
        reinforce(run)
    assert len(RunFolder(str(tmp_path / "run")).read_attempts()) == 1


def test_a_reward_that_an_actor_can_compute_for_nothing_ends_the_run(make_run, tmp_path):
    (tmp_path / "broken.py").write_text("def reward(prompt, completion, row):\n    return 1 / 0\n")
    mine = {"kind": "PythonFunction", "name": "mine", "file": str(tmp_path / "broken.py")}
    run = make_run(tmp_path / "run", rollouts={"actors": 1}, rewards=(mine,))
    with pytest.raises(DataError, match=r"'mine' scored none of 8 completions.*division by zero"):
        reinforce(run)
    assert len(RunFolder(str(tmp_path / "run")).read_attempts()) == 1
