import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "trainrig"
JOBS = sorted((ROOT / "jobs").glob("*.py"))
EXTRAS = PACKAGE.with_name("trainrig_contrib")
SOURCES = sorted([*PACKAGE.rglob("*.py"), *EXTRAS.rglob("*.py")])
FOLDERS = sorted({source.parent for source in SOURCES})
SAY_NOTHING = {"utils", "util", "helpers", "common", "base", "misc"}


def name_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_platform_is_a_source_root_and_no_package() -> None:
    """A package of this name would shadow the standard library's `platform`."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert not (ROOT / "platform.py").exists()


def test_the_standard_librarys_platform_is_found_from_the_root() -> None:
    code = "import platform, uuid; print(platform.python_version())"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == sys.version.split()[0].rstrip("+")


@pytest.mark.parametrize("job", JOBS, ids=name_path)
def test_a_job_is_forty_lines_at_most(job: Path) -> None:
    assert len(job.read_text().splitlines()) <= 40


@pytest.mark.parametrize("job", JOBS, ids=name_path)
def test_a_job_says_what_it_does_and_decides_nothing(job: Path) -> None:
    """A job that needs an `if` shows that the library lacks a function."""
    tree = ast.parse(job.read_text())
    assert ast.get_docstring(tree)
    inside = [node for statement in tree.body for node in ast.walk(statement)]
    choices = [node for node in inside if isinstance(node, ast.If | ast.IfExp | ast.Match)]
    assert [ast.unparse(node.test) for node in choices if isinstance(node, ast.If)] in (
        [],
        ["__name__ == '__main__'"],
    )
    assert all(isinstance(node, ast.If) for node in choices)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_path)
def test_a_folder_of_the_package_says_what_it_holds(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


@pytest.mark.parametrize("source", SOURCES, ids=name_path)
def test_a_file_says_what_it_holds_in_its_name_and_first_words(source: Path) -> None:
    assert source.stem not in SAY_NOTHING
    assert ast.get_docstring(ast.parse(source.read_text()))


def test_no_folder_is_named_for_nothing() -> None:
    assert [name_path(folder) for folder in FOLDERS if folder.name in SAY_NOTHING] == []


@pytest.mark.slow
def test_the_loop_and_all_below_it_run_where_there_is_no_ray() -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"  # pretend that Ray is not installed
        "import trainrig.train.loop, trainrig.train.pretrain, trainrig.models.huggingface\n"
        "import trainrig.evaluate.held_out_perplexity, trainrig.corpus.curate\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
