import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tuning_fixtures import build_tuning

from trainrig.attribution.forgetting.forget_plan import plan_forgetting
from trainrig.attribution.forgetting.forget_stage import take_back
from trainrig.attribution.forgetting.requested_pages import PageRequest
from trainrig.attribution.forgetting.run_children import list_children
from trainrig.attribution.forgetting.tensor_sums import compute_tensor_sum
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining

CHATS = [{"prompt": f"is {n}", "completion": "yes é"} for n in range(12)]
URLS = frozenset(f"https://{source}.example/{n}" for source in ("books", "web") for n in range(40))


@pytest.fixture
def tune(encode_rows: Callable[..., Any], tmp_path: Path, without_ray: None) -> Callable[..., str]:
    """Return `tune("tuned", base)`: fine-tune for 2 updates into that folder, and return it."""
    encode_rows(CHATS, "chats", held_out=0, sequence_length=47)

    def run(output: str, base: str, **changes: Any) -> str:
        folder = tmp_path / "runs" / output
        chats = str(tmp_path / "chats")
        made = build_tuning(base, chats, folder, None, {"steps": 2}, **{"workers": 1} | changes)
        posttrain(made)
        return made.output

    return run


@pytest.mark.slow
def test_runs_that_started_from_a_run_are_made_again_in_order(
    make_run: Callable[..., Pretraining], tokens: str, tune: Callable[..., str], tmp_path: Path
) -> None:
    old = str(tmp_path / "runs" / "old")
    training = {"steps": 6, "checkpoints": {"every": 2, "keep": 9}}
    pretrain(make_run(old, training=training))
    tuned = tune("tuned", old)
    second = tune("a-second", tuned)
    mixed = tune("mixed", old, pretraining={"tokens": tokens, "share": 0.5})
    shutil.copytree(tmp_path / "chats", tmp_path / "runs" / "no-run")

    children = list(list_children(old))
    assert [(child.folder, child.parent, child.step) for child in children] == [
        (mixed, old, 6),
        (tuned, old, 6),
        (second, tuned, 2),
    ]
    assert [child.left_to_user is None for child in children] == [False, True, True]
    assert "names pretraining, which may hold the pages too" in str(children[0].left_to_user)
    elsewhere = Path(second).rename(tmp_path / "elsewhere")
    assert len(list(list_children(old))) == 2
    assert [c.folder for c in list_children(old, [str(elsewhere)])][2:] == [str(elsewhere)]

    used = plan_forgetting(old, PageRequest(URLS, frozenset())).pages
    last = max(used, key=lambda page: page.first_data_step)
    request = PageRequest(frozenset([last.document.url]), frozenset())
    plan = plan_forgetting(old, request, search=[str(elsewhere)])
    new = str(tmp_path / "runs" / "new")
    certificate = take_back(plan, new, children=True)
    made = {child["folder"]: child["made_again"] for child in certificate.children}
    assert made == {
        mixed: None,
        tuned: f"{new}-children/tuned",
        str(elsewhere): f"{new}-children/elsewhere",
    }
    expected = tune("by-hand", new)
    assert compute_tensor_sum(made[tuned])[1] == compute_tensor_sum(expected)[1]
    assert compute_tensor_sum(made[tuned])[1] != compute_tensor_sum(tuned)[1]
    of_second = compute_tensor_sum(tune("second-by-hand", expected))[1]
    assert compute_tensor_sum(made[str(elsewhere)])[1] == of_second
