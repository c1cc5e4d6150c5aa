"""Every command of README and its guides works; the drawn folders and named files exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from trainrig import cli, config
from trainrig.launch.submit import run_paths
from trainrig.scaling.laws.runs_columns import SYNONYMS
from trainrig.verbs import VERBS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall(README)
# Pages whose commands are checked like those of the README: each can be copied as it is.
GUIDES = ("clusters", "commands", "encoders", "pretraining", "tokens", "your-data")
GUIDE_BLOCKS = [
    block
    for page in GUIDES
    for block in FENCE.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
]
COMMANDS = sorted(
    {
        line.strip().removeprefix("$ ")
        for language, block in BLOCKS + GUIDE_BLOCKS
        if language in {"bash", "console", "sh", "shell"}
        for line in block.splitlines()
        if line.strip() and not line.strip().startswith("#")
    }
    | set(re.findall(r"^\|.*\| `(trainrig [^`]+)` \|", README, re.MULTILINE))
)
VERBS_OF_CLI = get_command(cli.app).commands  # type: ignore[attr-defined]


def split_words(command: str) -> list[str]:
    """Return the command's words without its comment."""
    return shlex.split(command, comments=True)


def list_commands(program: str) -> list[str]:
    return [command for command in COMMANDS if split_words(command)[0] == program]


def test_there_are_commands_to_check() -> None:
    assert list_commands("make") and list_commands("trainrig") and list_commands("ray")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_of_a_program_that_is_checked_here(command: str) -> None:
    assert split_words(command)[0] in {"make", "source", "trainrig", "ray", "python3"}, (
        f"say in {Path(__file__).name} how to check it"
    )


@pytest.mark.parametrize("command", list_commands("make"))
def test_a_target_is_in_the_makefile(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    wanted = [word for word in split_words(command)[1:] if "=" not in word]
    assert wanted
    assert set(wanted) <= targets
    for word in split_words(command)[1:]:
        if "=" in word:
            assert re.search(rf"^{word.partition('=')[0]} [?:]?=", makefile, re.MULTILINE)


def parse(words: list[str]) -> dict[str, object]:
    """Parse `words` as the command line does, without running the command."""
    name, *rest = words
    command = VERBS_OF_CLI[name]
    return dict(command.make_context(name, list(rest)).params)


@pytest.mark.parametrize("command", list_commands("trainrig"))
def test_a_trainrig_command_parses_and_its_run_file_loads(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = split_words(command)[1:]
    given = parse(words)
    if "run_file" in given:
        run_file = str(given["run_file"])
        verb = Path(run_file).stem if words[0] == "check" else str(given.get("verb", words[0]))
        config.load(VERBS[verb].load_model(), run_file, given["changes"] or ())
    if "verb" in given:
        assert given["verb"] in VERBS


PAGE_FILES = {
    "docs-00000.warc.gz",
    *("pairs-train.jsonl", "pairs-held-out.jsonl", "instructions-train.jsonl"),
    *("instructions-held-out.jsonl", "problems.jsonl", "prompts.jsonl", "principles.txt"),
}
# What the quickstart leaves. tests/quickstart/site/test_site_pages.py checks the files of `pages`.
LEFT = {f"quickstart/pages/{name}" for name in PAGE_FILES} | {
    f"quickstart/{name}"
    for name in (
        *("pages", "documents", "tokenizer", "tokens", "model", "tuned", "aligned", "pairs"),
        *("conversations", "scores-early", "scores-model", "scores-tuned", "scores-aligned"),
    )
}


def test_commands_after_the_quickstart_read_what_it_or_an_earlier_one_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    _, block = FENCE.findall(page)[1]
    there = set(LEFT)
    for line in block.splitlines():
        words = split_words(line)[1:]
        given = parse(words)
        if words[0] == "init":
            assert set(given["data"]) <= there, line
            there.add(str(given["folder"]))
            continue
        if "run_file" not in given:
            read = ("checkpoint", "folder", "generations", "run")
            assert {str(next(given[name] for name in read if given.get(name)))} & (
                there | {"quickstart", "('quickstart/model',)", "['quickstart/model']"}
            ), line
            continue
        model = VERBS[words[0]].load_model()
        run = config.load(model, str(given["run_file"]), given["changes"] or ())
        for place in run_paths.find_paths(run):
            if place.use == "output":
                there.add(place.path)
            else:
                assert place.path in there, (line, place)


def test_the_cpu_wheel_is_the_pinned_torch_of_the_index_that_the_image_uses() -> None:
    (command,) = list_commands("python3")
    pin = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin is not None and pin.group() in split_words(command)
    index = command.partition("--index-url ")[2]
    assert f"--index-url {index}" in (ROOT / "cluster" / "Dockerfile").read_text()


def test_a_quickstart_installs_what_running_needs_and_shows_it() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "pip install --quiet" not in makefile
    installed = makefile.partition(".venv/installed: pyproject")[2].partition("\n\n")[0]
    assert "-e .\n" in installed and "[dev]" not in installed
    assert re.search(r"^quickstart: \.venv/installed ", makefile, re.MULTILINE)
    for target in ("lint", "types", "floors"):  # of `make test`
        assert re.search(rf"^{target}: \.venv/tools\b", makefile, re.MULTILINE)


def test_a_trainrig_command_that_does_not_parse_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option: --chatty"):
        parse(["generate", "quickstart/tuned", "--chatty", "--prompt", "?"])


@pytest.mark.parametrize("command", list_commands("ray"))
def test_a_job_is_submitted_with_options_that_ray_has(command: str) -> None:
    from ray.dashboard.modules.job.cli import submit

    ray, job, verb, *words = split_words(command)
    assert (ray, job, verb) == ("ray", "job", "submit")
    # Parse as Ray's own command does: everything after `--` is the entrypoint.
    given = submit.make_context("submit", words).params
    assert given["working_dir"] == "."
    assert json.loads(given["runtime_env_json"])["env_vars"] == {"PYTHONPATH": "platform"}
    python, script, run_file = given["entrypoint"]
    assert python == "python"
    assert (ROOT / script).is_file()
    verb = {"tokens": "tokenize"}.get(Path(script).stem, Path(script).stem)
    config.load(VERBS[verb].load_model(), str(ROOT / run_file))


@pytest.mark.parametrize("verb", sorted(VERBS_OF_CLI))
def test_every_verb_is_shown(verb: str) -> None:
    assert any(split_words(command)[1] == verb for command in list_commands("trainrig")) or any(
        split_words(command)[1:] == [verb] for command in list_commands("make")
    )


def list_drawn_folders() -> list[str]:
    """Return the folders of the package as drawn in the README."""
    (tree,) = [block for _, block in BLOCKS if block.startswith("platform/trainrig")]
    return re.findall(r"^  (\w+)/", tree, re.MULTILINE)


def test_the_tree_shows_the_folders_that_there_are() -> None:
    package = ROOT / "platform" / "trainrig"
    there = {path.parent.name for path in package.glob("*/__init__.py")}
    assert sorted(list_drawn_folders()) == sorted(there)


def test_the_folders_are_drawn_in_the_order_of_the_floors() -> None:
    """Folders import only from those above them."""
    layers = (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("\n]")[0]
    floors = [name for line in re.findall(r'"(.+)"', layers) for name in line.split(" | ")]
    ranks = {
        name: rank
        for rank, line in enumerate(reversed(re.findall(r'"(.+)"', layers)))
        for name in line.split(" | ")
    }
    assert set(list_drawn_folders()) <= set(floors)
    heights = [ranks[name] for name in list_drawn_folders()]
    assert heights == sorted(heights)


TOP = {"platform", "jobs", "tests", "docs", "benchmarks", "deploy"}


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"(?:`|\"|\()((?:\w+/)+[\w.-]*)(?:`|\"|\))", README)))
)
def test_a_path_that_is_named_exists(path: str) -> None:
    """These are paths of the repository; a run's outputs exist only after it."""
    if path.partition("/")[0] in TOP:
        assert (ROOT / path).exists()
    elif (ROOT / "platform" / "trainrig" / path.partition("/")[0]).is_dir():
        assert path == "quickstart/report.html" or (ROOT / "platform" / "trainrig" / path).exists()


def test_tests_that_pages_name_are_there() -> None:
    """A claim is only as good as the test that checks it."""
    files = {path.name for path in (ROOT / "tests").rglob("*.py")}
    functions = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text()
        for path in re.findall(r"\btests/[\w/]+\.py\b", text):
            assert (ROOT / path).exists(), (page.name, path)
        for name in re.findall(r"(?<![\w…/])test_\w+(?:\.py)?", text):
            known = files if name.endswith(".py") else {*functions, *SYNONYMS["loss"]}
            assert name in known, (page.name, name)


def test_the_index_of_the_docs_names_each_page_once_and_the_readme_names_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {
        path.relative_to(ROOT / "docs").as_posix()
        for pattern in ("*.md", "reference/*.md", "tutorials/*.md")
        for path in (ROOT / "docs").glob(pattern)
    } - {"README.md"}
    links = re.findall(r"\]\(((?!evidence/)[\w-]+(?:/[\w-]+)*\.md)\)", index)
    assert sorted(links) == sorted(pages)
    for page in ("README", "run-files", "scaling", "performance"):
        assert f"](docs/{page}.md)" in README


def test_nothing_is_left_to_fill_in() -> None:
    assert re.findall(r"\bQS_\w+|\bTODO\b|\bXXX\b", README) == []


def test_the_pictures_are_those_that_their_script_draws(tmp_path: Path) -> None:
    pictures = ROOT / "docs" / "pictures"
    script = shutil.copy(pictures / "draw.py", tmp_path)
    subprocess.run([sys.executable, script], check=True)
    drawn_again = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert len(drawn_again) == 3
    assert {path.name: path.read_bytes() for path in pictures.glob("*.svg")} == drawn_again


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in list_anchors(target), link
