"""The messages of trainrig are plain English: errors, warnings, prints, help texts and pages.

`pytest -s tests/test_messages.py -k printed` shows them all as a table, for reading.
"""

import re
from pathlib import Path

import pytest
from support.messages import Message, collect_messages
from test_plain_english import TURN

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "trainrig"
EXTRAS = ROOT / "platform" / "trainrig_contrib"
JOBS = ROOT / "jobs"
# Words that a message has plain ones for.
DIALECT = re.compile(
    r"\b(planted|told|reckon(s|ed|ing)?|comes? to|what it hangs on|there (is|are) none|takes? turns"
    r"|beside|goes on|go on|as many|so it does(?! not)|by itself|room for|is there to|what is there"
    r"|taken apart|said|(?<![\d.,/-])1 (?!less|plus|minus|this|is\b|has\b|was\b|s\b)[a-z]{3,}s)\b",
    re.I,
)


def find_sources() -> list[Path]:
    """Return the modules with messages; those of `quickstart/site` write pages of other authors."""
    site = PACKAGE / "quickstart" / "site"
    return sorted(
        path
        for folder in (PACKAGE, EXTRAS, JOBS)
        for pattern in ("*.py", "*.html.j2")
        for path in folder.rglob(pattern)
        if site not in path.parents
    )


def show_place(path: Path) -> str:
    return path.relative_to(PACKAGE if PACKAGE in path.parents else ROOT).as_posix()


def find_dialect(message: Message) -> str | None:
    """Return the first turn of a message that plain English has other words for."""
    text = message.blank_fields()
    found = TURN.search(text) or DIALECT.search(text)
    return found[0] if found else None


def test_every_message_is_collected_and_printed() -> None:
    table = [
        (f"{show_place(path)}:{message.line}", message.kind, message.text)
        for path in find_sources()
        for message in collect_messages(path)
    ]
    for place, kind, text in table:
        print(f"{place}\t{kind}\t{text!r}")
    assert {kind for _, kind, _ in table} == {"error", "help", "log", "page", "print", "text"}


@pytest.mark.parametrize("path", find_sources(), ids=show_place)
def test_messages_are_plain_english(path: Path) -> None:
    found = {
        f"{path.name}:{message.line}: {message.kind}: say `{turn}` in plain words: {message.text}"
        for message in collect_messages(path)
        if (turn := find_dialect(message))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("raise ConfigError(f'{name}: nobody told it')", "error", "{name}: nobody told it"),
        ("raise Bad('gone')", "error", "gone"),
        ("log.warning('%d rows', n)", "log", "%d rows"),
        ("typer.Option('--of', help='Count.')", "help", "Count."),
        ("Text('one' if a else 'two words')", "page", "two words"),
        ("terminal.say(f'{len(x[0])} left')", "print", "{len(x[0])} left"),
        ("def f():\n    '''Do it all.'''\n    return 'of its own'", "text", "of its own"),
    ],
)
def test_a_message_is_found_where_it_is_written(
    source: str, kind: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert (kind, text) in {(found.kind, found.text) for found in collect_messages(path)}
    assert "Do it all." not in {found.text for found in collect_messages(path)}


@pytest.mark.parametrize(
    "text", ["{count} planted", "nobody asks", "1 tasks are left", "there is none of it"]
)
def test_the_old_dialect_is_found_in_messages(text: str) -> None:
    assert find_dialect(Message(1, "text", text))


@pytest.mark.parametrize("text", ["step 1 is left", "1 task", "{told} of 3", "21 tasks"])
def test_plain_messages_pass(text: str) -> None:
    assert not find_dialect(Message(1, "text", text))
