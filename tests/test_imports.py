"""Errors appear at once: slow packages are imported only when they are needed.

Seconds depend on the machine, so modules are counted.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig.verbs import VERBS

ROOT = Path(__file__).parents[1]
RUN_FILES = sorted((ROOT / "jobs" / "configs").glob("*/*.toml"))
Imported = Callable[..., tuple[list[str], str]]


def test_the_command_line_itself_imports_none(imported: Imported) -> None:
    assert imported("--help")[0] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "nope.toml"], "no such run file"),
        (["pretrain", "nope.toml"], "no such run file"),
        (["check", "{wrong}"], "no key 'stps'"),
        (["pretrain", "{wrong}"], "no key 'stps'"),
        (["posttrain", "jobs/configs/quickstart/posttrain.toml"], "quickstart/conversations"),
        (["plan", "chinchila", "--budget-usd", "10"], "there are: besiroglu"),
        (["plan", "hoffmann"], "plan: "),
        (["plan", "hoffmann", "--flops", "-1"], "plan: flops"),
    ],
)
def test_an_error_appears_without_slow_imports(
    arguments: list[str], said: str, tmp_path: Path, imported: Imported
) -> None:
    wrong = tmp_path / "wrong.toml"
    right = (ROOT / "jobs/configs/quickstart/pretrain.toml").read_text()
    wrong.write_text(right.replace("steps = 300", "stps = 300"))
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    given = [argument.format(wrong=wrong) for argument in arguments]
    slow, told = imported(*given, cwd=tmp_path, code=2)
    assert said in told
    assert slow == []


@pytest.mark.parametrize("run_file", RUN_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_good_file_is_checked_without_them(
    run_file: Path, tmp_path: Path, imported: Imported
) -> None:
    if run_file.stem == "pages":
        pytest.skip("the quickstart's own: no verb takes it")
    # Otherwise on S3.
    here = [] if run_file.stem != "ladder" else ["--set", f"tokens={tmp_path}/tokens"]
    assert imported("check", run_file, *here, cwd=tmp_path)[0] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_model_of_a_run_file_needs_none(verb: str, imported: Imported) -> None:
    assert imported("schema", verb)[0] == []
