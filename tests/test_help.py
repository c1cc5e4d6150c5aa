"""Help of each command: a summary sentence, a valid example and an explanation of each option."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from typer.main import get_command

from trainrig import cli
from trainrig.command_line import SECTIONS, extract_summary

ROOT = get_command(cli.app)


def groups(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from groups(found, (*path, name))


def list_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from list_commands(found, (*path, name))
        else:
            yield (*path, name), found


COMMANDS = dict(list_commands(ROOT))
OPTIONS = [
    (path, param)
    for path, command in COMMANDS.items()
    for param in command.params
    if param.name != "help"
]


def render_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("width", ["80", "120"])
def test_help_shows_a_whole_summary_an_example_and_no_types_of_python(
    path: tuple[str, ...],
    width: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    page = render_help([*path, "-h"], capsys)
    assert page == render_help([*path, "--help"], capsys)
    said = extract_summary(COMMANDS[path].help)
    assert re.fullmatch(r"[A-Z].*[a-z)]\.", said)
    assert said in " ".join(page.split())
    assert not re.search(r"\.\.\.(?!$|\n)|<\w+", page.partition("\n\n")[2])
    for example in COMMANDS[path].epilog.splitlines():
        assert f"\n  {example}\n" in page


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_example_parses_as_its_command(path: tuple[str, ...]) -> None:
    for example in COMMANDS[path].epilog.splitlines():
        program, *words = shlex.split(example.partition(" > ")[0])
        assert (program, *words[: len(path)]) == ("trainrig", *path)
        COMMANDS[path].make_context(" ".join(path), words[len(path) :])


@pytest.mark.parametrize(
    ("path", "param"), OPTIONS, ids=lambda parameter: getattr(parameter, "name", None)
)
def test_each_option_has_a_sentence_a_unit_and_a_default(path: tuple[str, ...], param: Any) -> None:
    assert re.match(r"[A-Z].*[.\])]$", param.help), param.help
    if getattr(param, "is_flag", False):
        return
    assert param.metavar, "say in the user's words what is to be written"
    is_explained = (
        "[default: " in param.help or "repeatable" in param.help or "Budget: " in param.help
    )
    assert (
        is_explained
        or param.required
        or param.default is not None
        or "instead" in param.help
        or "--" in param.help
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_top_groups_all_commands_in_the_order_of_the_data_path(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    page = render_help(["-h"], capsys)
    assert "..." not in page.partition("\n\n")[2]
    assert max(map(len, page.splitlines())) <= width
    assert "Commands:" not in page
    titles = re.findall(r"^(\w.*):$", page.partition("Options:")[2], re.MULTILINE)
    assert titles == list(SECTIONS)
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", page, re.MULTILINE)
    assert sorted(listed) == sorted(ROOT.commands)  # type: ignore[attr-defined]
    path = ["curate", "tokenizer", "tokenize", "pretrain", "posttrain", "evaluate"]
    assert [name for name in listed if name in path] == path
    for found in ROOT.commands.values():  # type: ignore[attr-defined]
        # A rendered line may break at a hyphen.
        assert extract_summary(found.help) in " ".join(page.split()).replace("- ", "-")


@pytest.mark.parametrize("path", [*groups(ROOT)], ids=lambda path: " ".join(path) or "trainrig")
def test_groups_take_h_as_well(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert render_help([*path, "-h"], capsys) == render_help([*path, "--help"], capsys)


def test_completed_words_are_those_that_the_models_take() -> None:
    from trainrig.models.huggingface import HubFolder
    from trainrig.scaling.fit import law_fit, recipe_comparison
    from trainrig.scaling.laws import runs_table
    from trainrig.tokens.rows.packing import Packing

    def offered(command: str, option: str) -> set[str]:
        (param,) = [
            parameter
            for parameter in COMMANDS[tuple(command.split())].params
            if parameter.name == option
        ]
        found = param.shell_complete(ROOT.make_context("trainrig", [], resilient_parsing=True), "")
        assert all(item.value in param.help for item in found)
        return {item.value for item in found}

    def kinds(union: Any) -> set[str]:
        members = get_args(get_args(union)[0])
        return {member.model_fields["kind"].default for member in members}

    def literals(model: Any, field: str) -> set[str]:
        return set(get_args(model.model_fields[field].annotation))

    # the annotation also allows None
    dtype, _ = get_args(HubFolder.model_fields["dtype"].annotation)
    assert offered("export", "dtype") == set(get_args(dtype))
    assert offered("tokens inspect", "packing") == kinds(Packing)
    assert offered("fit", "form") == set(get_args(law_fit.form_choice.Kind))
    assert offered("fit", "share") == literals(recipe_comparison.RecipeFit, "share")
    assert offered("fit", "hold_out_by") == literals(law_fit.HoldOut, "by")
    assert offered("fit", "counts") == set(get_args(runs_table.Counts))
