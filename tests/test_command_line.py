"""Commands take options that belong together as one object."""

import re
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from trainrig import command_line
from trainrig.command_line import START, argument, flag, option, quantity
from trainrig.errors import ConfigError


@dataclass(frozen=True)
class Paint:
    colour: Annotated[str, option("NAME", help="Colour.")]
    coats: Annotated[int, option("N", help="Number of coats.", min=1)] = 2
    gloss: Annotated[bool, flag("--gloss", help="Paint that shines.")] = False


def run(arguments: list[str]) -> tuple[int, str]:
    app = typer.Typer(cls=command_line.HelpGroup, rich_markup_mode=None)

    @command_line.command(app, START, "trainrig paint door --colour red")
    def paint(
        thing: Annotated[str, argument("THING", help="Thing to paint.")] = "wall",
        *,
        paint: Paint,
        context: typer.Context,
        hours: Annotated[float | None, quantity("H", "--hours", help="Hours.")] = None,
    ) -> None:
        """Paint a thing."""
        print(thing, paint, sorted(context.params), hours)

    @command_line.command(app, START, "trainrig wait")
    def wait() -> None:
        """Wait until the paint is dry."""

    answer = CliRunner().invoke(app, arguments)
    if isinstance(answer.exception, ConfigError):
        raise answer.exception
    return answer.exit_code, answer.output


def test_fields_of_an_object_are_options_in_their_place() -> None:
    code, page = run(["paint", "--help"])
    assert code == 0
    assert re.findall(r"^  (--\w+)", page, re.MULTILINE) == [
        *("--colour", "--coats", "--gloss", "--hours", "--help"),
    ]
    assert "[default: 2; x>=1]" in page
    assert "[required]" in page


def test_a_command_gets_the_object_that_its_options_make() -> None:
    names = ["coats", "colour", "gloss", "hours", "thing"]
    given = ["paint", "door", "--colour", "red", "--gloss", "--hours", "1.5k"]
    assert run(given) == (0, f"door {Paint('red', 2, True)} {names} 1500.0\n")
    assert run(["paint", "--colour", "red"]) == (0, f"wall {Paint('red')} {names} None\n")
    assert run(["wait"]) == (0, "")


def test_options_of_an_object_are_checked_as_others_are() -> None:
    assert run(["paint"])[0] == 2
    assert run(["paint", "--colour", "red", "--coats", "0"])[0] == 2
    with pytest.raises(ConfigError, match="--hours: 'long'"):
        run(["paint", "--colour", "red", "--hours", "long"])
