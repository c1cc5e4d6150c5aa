"""Replays of runs with other settings: attention within documents, stages, and initial weights."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.replays import finish_run, train, write_masks

from trainrig.attribution.forgetting.forget_plan import ForgetPlan, plan_forgetting
from trainrig.attribution.forgetting.forget_stage import (
    build_run,
    check_certificate,
    prepare_replay,
    take_back,
)
from trainrig.attribution.forgetting.requested_pages import PageRequest
from trainrig.attribution.forgetting.tensor_sums import compute_tensor_sum
from trainrig.errors import ConfigError
from trainrig.train import pretrain
from trainrig.train.run_file.run_files import Pretraining

STEPS = 12
TRAINING = {"steps": STEPS, "checkpoints": {"every": 2, "keep": 100}}
CHANGED_AT = 6  # first step of the second stage
LONGER = {"sequence_length": 16, "stages": ({"from_step": CHANGED_AT, "sequence_length": 32},)}
STAGES: dict[str, dict[str, Any]] = {
    "documents": {"batches": {"attend": "document"}},
    "context": {
        "model": {"positions": 16},
        "batches": LONGER,
        "context": ({"from_step": CHANGED_AT, "positions": 32, "rope": {"theta": 40_000.0}},),
    },
    "context, documents": {"batches": {**LONGER, "attend": "document"}},
}
URLS = frozenset(f"https://{source}.example/{n}" for source in ("books", "web") for n in range(40))


def plan_late_pages(run: str, since: int) -> ForgetPlan:
    """Plan to take back three pages that `run` used first in the batch `since` or later."""
    used = plan_forgetting(run, PageRequest(URLS, frozenset())).pages
    late = [page for page in used if page.first_data_step >= since]
    late.sort(key=lambda page: page.first_data_step)
    assert len(late) >= 3
    urls = frozenset(page.document.url for page in late[:3])
    return plan_forgetting(run, PageRequest(urls, frozenset()))


@pytest.mark.slow
@pytest.mark.parametrize("since", [3, CHANGED_AT + 1])  # before and in the second stage
@pytest.mark.parametrize("name", STAGES)
def test_a_replay_with_other_rows_equals_a_run_masked_from_its_beginning(
    make_run: Callable[..., Pretraining], ranks: Any, tmp_path: Path, name: str, since: int
) -> None:
    old = make_run(tmp_path / "old", training=TRAINING, **STAGES[name])
    finish_run(old, ranks)
    plan = plan_late_pages(old.output, since)
    assert plan.start and since - 3 < plan.start.step <= plan.first_update - 1
    masks = write_masks(plan.masked, tmp_path / "masked.json")
    run = make_run(
        tmp_path / "from-start", training=TRAINING, masked_documents=masks, **STAGES[name]
    )
    from_start = pretrain.prepare(run)
    Path(from_start.folder).mkdir()
    train(ranks, 1, from_start)
    replay = prepare_replay(plan, build_run(plan, str(tmp_path / "new")))
    Path(replay.folder).mkdir()
    train(ranks, 1, replay)
    expected = compute_tensor_sum(from_start.folder)[1]
    assert compute_tensor_sum(replay.folder)[1] == expected != compute_tensor_sum(plan.run)[1]


@pytest.fixture
def continued(make_run: Callable[..., Pretraining], ranks: Any, tmp_path: Path) -> Pretraining:
    """Train a base of 4 updates, then a run that began with its second checkpoint."""
    base = make_run(
        tmp_path / "base", training={"steps": 4, "checkpoints": {"every": 2, "keep": 9}}
    )
    finish_run(base, ranks)
    last = tmp_path / "base/checkpoints/step_00000004"
    later = last.rename(tmp_path / "later")
    run = make_run(tmp_path / "old", training=TRAINING, continue_from=base.output)
    finish_run(run, ranks)
    later.rename(last)
    return run


@pytest.mark.slow
def test_a_run_with_initial_weights_is_replayed_with_the_same_weights(
    continued: Pretraining, ranks: Any, without_ray: None, tmp_path: Path
) -> None:
    used = plan_forgetting(str(tmp_path / "base"), PageRequest(URLS, frozenset())).pages
    by_base = {page.document.url for page in used}
    request = PageRequest(URLS - by_base, frozenset())
    all_new = plan_forgetting(continued.output, request)
    urls = [page.document.url for page in all_new.pages if page.first_data_step > 2][-3:]
    assert urls and all_new.unknown_base is None
    plan = plan_forgetting(continued.output, PageRequest(frozenset(urls), frozenset()))
    assert plan.base and "/step_00000002/" in plan.base  # the base was trained further since
    assert plan.start and plan.start.step > 0
    out = str(tmp_path / "new")
    certificate = take_back(plan, out)
    assert certificate.unknown_base is None
    run = build_run(plan, str(tmp_path / "from-start"))
    job = pretrain.prepare(run, plan.masked)
    Path(job.folder).mkdir()
    train(ranks, 1, job)
    lines = list(check_certificate(out, job.folder))
    assert lines[-1].endswith("all tensors are equal, byte for byte")
    assert "/step_00000002/" in Path(out, "from_start.toml").read_text()

    with pytest.raises(ConfigError, match=r"its initial weights, .*, learned from https"):
        plan_forgetting(continued.output, PageRequest(frozenset(by_base), frozenset()))
    shutil.rmtree(tmp_path / "base/checkpoints/step_00000002")
    with pytest.raises(ConfigError, match="no checkpoint there has it now; restore it"):
        plan_forgetting(continued.output, PageRequest(frozenset(urls), frozenset()))


@pytest.mark.slow
def test_a_deleted_checkpoint_of_the_first_run_makes_its_data_unknown(
    continued: Pretraining, make_run: Callable[..., Pretraining], ranks: Any, tmp_path: Path
) -> None:
    last = make_run(tmp_path / "last", training={"steps": 4}, continue_from=continued.output)
    finish_run(last, ranks)
    nothing = PageRequest(frozenset(["https://x.example/none"]), frozenset())
    assert plan_forgetting(last.output, nothing).unknown_base is None
    shutil.rmtree(tmp_path / "base/checkpoints/step_00000002")
    assert plan_forgetting(last.output, nothing).unknown_base == str(tmp_path / "base")
