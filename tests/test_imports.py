"""Errors appear at once: slow packages are imported only when they are needed.

Seconds depend on the machine, so modules are counted.
"""

import ast
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import trainrig
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


@pytest.mark.parametrize(
    ("arguments", "slow"),
    [
        (["compare", "nope", "other"], {"scipy"}),
        (["leaderboard", "nope"], {"scipy"}),
        (["report", "nope"], set()),
    ],
)
def test_a_command_that_reads_results_imports_no_torch_and_no_plots(
    arguments: list[str], slow: set[str], tmp_path: Path, imported: Imported
) -> None:
    found, told = imported(*arguments, cwd=tmp_path, code=2)
    assert "nope: no such folder" in told
    assert set(found) <= slow


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


def run_python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_library_imports_nothing_before_its_first_use() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "import trainrig; dir(trainrig); trainrig.__version__; trainrig.ConfigError\n"
        "print(*(name for name in set(sys.modules) - before if 'trainrig' not in name))"
    )
    heavy = {"torch", "ray", "pyarrow", "pandas", "numpy", "scipy", "pydantic", "typer", "rich"}
    assert {name.partition(".")[0] for name in run_python(program).split()} & heavy == set()


def test_the_names_for_type_checkers_are_those_of_the_library() -> None:
    tree = ast.parse(Path(trainrig.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted([*typed, "__version__"]) == trainrig.__all__
    assert dir(trainrig) == trainrig.__all__
    for name, module in typed.items():
        assert module is not None
        found = getattr(trainrig, name)
        if name not in ("evaluate", "posttrain", "rl"):
            assert found is getattr(sys.modules[module], name)


def test_a_function_that_uses_the_package_can_be_sent_to_other_processes() -> None:
    """Ray pickles the modules among a function's globals."""
    assert pickle.loads(pickle.dumps(trainrig)) is trainrig
    assert pickle.loads(pickle.dumps(trainrig.evaluate)) is sys.modules["trainrig.evaluate"]


@pytest.mark.parametrize("verb", ["evaluate", "posttrain", "rl"])
@pytest.mark.parametrize("first", ["", "import trainrig.{}; ", "from trainrig import {}; "])
def test_a_folder_with_the_name_of_a_verb_can_be_called(verb: str, first: str) -> None:
    """The folder stays a module, whatever is imported first."""
    program = (
        f"{first.format(verb)}import trainrig\n"
        f"try: trainrig.{verb}(wrong=1)\n"
        "except trainrig.ConfigError as error: print(error)\n"
        f"import inspect, trainrig.{verb} as folder; print(inspect.ismodule(folder))\n"
        f"print(*inspect.signature(trainrig.{verb}).parameters)"
    )
    said, is_module, parameters = run_python(program).splitlines()
    assert said.startswith(f"{verb}: no key 'wrong' in ")
    assert is_module == "True"
    assert parameters == "run changes progress keys"
