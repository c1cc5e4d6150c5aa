"""Prompts taken back from runs of reinforcement learning."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.replays import train
from support.rollout_fixtures import make_run as make_rl
from support.tuning_fixtures import encoder, fresh
from typer.testing import CliRunner

from trainrig import storage
from trainrig.attribution.forgetting.forget_plan import FORGOTTEN, ForgetPlan
from trainrig.attribution.forgetting.forget_prompts import (
    branch_run,
    check_masked_data,
    check_stored_batches,
    plan_prompts,
)
from trainrig.attribution.forgetting.forget_stage import (
    CERTIFICATE,
    FROM_START,
    MASKED,
    build_run,
    check_certificate,
    take_back,
)
from trainrig.attribution.forgetting.requested_pages import PageRequest, UnusedName
from trainrig.attribution.forgetting.tensor_sums import compute_tensor_sum
from trainrig.cli import app
from trainrig.errors import ConfigError, DataError
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.reinforcement_stage import prepare, reinforce
from trainrig.tokens.rows.masked_documents import MaskedDocuments
from trainrig.train import checkpoint
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

__all__ = ["encoder", "fresh", "make_rl"]

STEPS = 6


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write 40 prompts with ids and URLs, more than the batches of a run place."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [
        {
            "question": f"is {n} {'a ' * (n % 4)}",
            "answer": "e",
            "id": f"row-{n}",
            "url": f"https://p/{n}",
        }
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def make(make_rl: Callable[..., ReinforcementLearning], without_ray: None) -> Callable[..., Any]:
    """Return `make(output, …)`, which makes the run file of STEPS updates."""

    def make_file(output: Path | str, **changes: Any) -> ReinforcementLearning:
        training = {"steps": STEPS, "checkpoints": {"every": 1, "keep": 99}}
        return make_rl(output, **{"training": training, **changes})

    return make_file


def list_batches(run: str) -> list[list[str]]:
    """Return the ids of the prompts of each stored batch of a run."""
    return [
        [
            f"row-{number}"
            for index in range(len(batch.files))
            for number in batch.read_micro_batch(index).pieces[::4, 2].tolist()
        ]
        for batch in list_stored_batches(RunFolder(run))
    ]


def plan_names(run: str, *names: str) -> ForgetPlan:
    return plan_prompts(run, PageRequest(frozenset(), frozenset(names)))


@pytest.mark.slow
@pytest.mark.parametrize("updates", [1, 2])
def test_a_replay_equals_a_run_with_the_prompts_masked_from_its_beginning(
    updates: int, make: Callable[..., Any], ranks: Any, mortal_ranks: Any, tmp_path: Path
) -> None:
    old = str(tmp_path / "old")
    rollouts = {"updates": updates}
    if updates > 1:
        run = make(old, rollouts=rollouts, objective={"kind": "DAPO"})
    else:
        run = make(old, rollouts=rollouts, objective={"kind": "GRPO", "reference": {"weight": 0.1}})
    reinforce(run)
    made = list_batches(old)
    assert len(made) == STEPS // updates and len(set(made[-1])) == 4
    plan = plan_names(old, *made[-1][:2])
    last = tuple(range(STEPS - updates + 1, STEPS + 1))
    assert [page.updates for page in plan.pages] == [last, last]
    assert plan.start and plan.start.step == plan.first_update - 1 == STEPS - updates

    new = str(tmp_path / "new")
    certificate = take_back(plan, new)
    assert certificate.unknown_base == checkpoint.resolve(run.checkpoint)
    lines = list(check_certificate(new))
    assert "2 masked documents: 8 rows of 1 batches" in lines[-1]

    start = make(
        tmp_path / "from-start",
        rollouts=rollouts,
        objective=run.objective,
        masked_documents=f"{new}/masked.json",
    )
    reinforce(start)
    expected = compute_tensor_sum(start.output)[1]
    assert certificate.tensors_sha256 == expected != compute_tensor_sum(old)[1]
    assert "all tensors are equal" in list(check_certificate(new, start.output))[-1]

    # Two ranks, one of which is killed before the last update, then one or two ranks.
    replay = build_run(plan, str(tmp_path / "killed"))
    assert isinstance(replay, ReinforcementLearning)
    job, _, _ = branch_run(plan, replay)
    attempt = RunFolder(job.folder).take_attempt(0)
    processes = mortal_ranks.start(
        2, "train", job=job, attempt=attempt, fault=(1, "die", STEPS - 1)
    )
    assert processes[1].wait() == -signal.SIGKILL
    mortal_ranks.end()
    train(ranks, updates, job)
    assert compute_tensor_sum(job.folder)[1] == expected


@pytest.mark.slow
def test_no_weight_depends_on_the_text_of_a_masked_prompt(
    make: Callable[..., Any], problems: str, tmp_path: Path
) -> None:
    old = make(tmp_path / "old")
    reinforce(old)
    made = list_batches(old.output)
    plan = plan_names(old.output, made[2][0], made[4][1], made[4][3], "nothing")
    assert [name.name for name in plan.unused] == ["nothing"]
    (tmp_path / "masked.json").write_bytes(plan.masked.encode())
    first = make(tmp_path / "first", masked_documents=str(tmp_path / "masked.json"))
    reinforce(first)

    rows = [json.loads(line) for line in Path(problems).read_text().splitlines()]
    hidden = {document.number for document in plan.masked.documents}
    for number in hidden:
        rows[number] |= {"question": "another text", "answer": "x"}
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = old.prompts.model_copy(update={"paths": (str(changed),)})
    _, inputs, _ = prepare(make(tmp_path / "none", prompts=prompts))
    masked = plan.masked.model_copy(update={"shards": inputs["prompts"]})
    (tmp_path / "other.json").write_bytes(masked.encode())
    second = make(
        tmp_path / "second", prompts=prompts, masked_documents=str(tmp_path / "other.json")
    )
    reinforce(second)
    assert compute_tensor_sum(first.output)[1] == compute_tensor_sum(second.output)[1]
    assert check_stored_batches(first.output, plan.masked) == (2, 12)
    # The old run's batches hold them.
    with pytest.raises(DataError, match=r"micro-batch \d holds a masked prompt"):
        check_stored_batches(old.output, plan.masked)


@pytest.mark.slow
def test_prompts_are_taken_back_twice_and_after_a_stop_at_any_write(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make(tmp_path / "old")
    reinforce(old)
    made = list_batches(old.output)
    late = plan_names(old.output, made[4][0])
    new = str(tmp_path / "new")
    certificate = take_back(late, new)
    assert take_back(late, new) == certificate  # nothing is left to do

    # A further request names a prompt that no update of the new run itself placed.
    others = {name for batch in (made[0], *made[2:]) for name in batch}
    early = next(name for name in made[1] if name not in others)
    further = plan_names(new, early, made[4][0])
    assert further.unused == (UnusedName(made[4][0], "is masked already"),)
    assert [page.updates for page in further.pages] == [(2,)]
    assert further.start and further.start.checkpoint.startswith(old.output)
    assert further.start.step == 1

    newest = str(tmp_path / "newest")
    write = storage.write
    for stop in (MASKED, FORGOTTEN, FROM_START, CERTIFICATE):

        def write_or_stop(path: str, data: bytes, stop: str = stop) -> None:
            if path.endswith(f"newest/{stop}"):
                raise KeyboardInterrupt
            write(path, data)

        monkeypatch.setattr(storage, "write", write_or_stop)
        with pytest.raises(KeyboardInterrupt):
            take_back(further, newest)
    monkeypatch.undo()
    request = PageRequest(frozenset(), frozenset([early, made[4][0]]))
    again = plan_prompts(new, request, out=newest)
    assert again.start == further.start
    assert take_back(again, newest).earlier == 1

    masks = f"{newest}/masked.json"
    start = make(tmp_path / "from-start", masked_documents=masks)
    reinforce(start)
    result = CliRunner().invoke(app, ["forget", newest, "--check", "--against", start.output])
    assert result.exit_code == 0, result.output
    assert "records these masks for its data" in result.stdout
    assert "equal, byte for byte" in result.stdout
    with pytest.raises(ConfigError, match="was trained on other data than in the run file"):
        check_masked_data(new, checkpoint.resolve(new), further.masked)


@pytest.mark.slow
def test_requests_that_cannot_work_are_refused_in_one_line(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    old = make(tmp_path / "old", training={"steps": 2})
    reinforce(old)
    names = tmp_path / "names.txt"
    names.write_text("row-1\nhttps://p/none\n")
    asked = ["forget", old.output, "--documents", str(names), "--plan"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "https://p/none: nothing to take back; no usable prompt of" in done.stdout
    with pytest.raises(ConfigError, match="`curate` did not compare; leave it out"):
        CliRunner().invoke(app, [*asked, "--near-duplicates", "x"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="batch 1 has no other prompts than masked ones"):
        plan_names(old.output, *list_batches(old.output)[1])


@pytest.mark.parametrize(
    ("rollouts", "message"),
    [
        ({"redraws": 1}, r"rollouts\.redraws, rewards decide which prompts a batch has"),
        ({"waves": 2}, r"rollouts\.waves, rewards decide which prompts a batch has"),
        ({"lag": 1}, r"rollouts\.lag, batches are sampled from earlier weights"),
        ({"partial": {"budget": 2}}, r"rollouts\.partial, batches continue earlier completions"),
    ],
)
def test_runs_whose_batches_depend_on_more_are_refused(
    make_rl: Callable[..., Any], tmp_path: Path, rollouts: dict[str, Any], message: str
) -> None:
    run = make_rl(tmp_path / "run", rollouts=rollouts)
    _, inputs, _ = prepare(run)
    masked = MaskedDocuments(shards=inputs["prompts"], filler=0, documents=())
    with pytest.raises(ConfigError, match=f"masked_documents: with {message}"):
        prepare(run, masked)
