"""Outputs that cannot be written: one line and exit code 2 before any work, in every verb."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainrig import cli
from trainrig.errors import ConfigError
from trainrig.storage.writable import check_file, check_folder
from trainrig.verbs import VERBS

CONFIGS = Path(__file__).parents[2] / "jobs" / "configs"
OTHERS: dict[str, Callable[[str], list[str]]] = {
    "quickstart": lambda out: ["quickstart", "--out", out],
    "export": lambda out: ["export", "none", out],
    "import": lambda out: ["import", "none", out],
    "fit": lambda out: ["fit", "none", "--out", out],
    "mixture of tables": lambda out: ["mixture", "none", "none", "--out", out],
    "average": lambda out: ["average", "none", out, "--last", "2"],
    "report": lambda out: ["report", "none", "another", "--html", out],
    "compare": lambda out: ["compare", "none", "another", "--html", out],
    "leaderboard": lambda out: ["leaderboard", "none", "--html", out],
    "plan": lambda out: [
        "plan",
        "hoffmann",
        "--flops=1e18",
        "--set=tokens_folder=none",
        "--out",
        out,
    ],
}


@pytest.fixture
def refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], str]:
    """Return a function that runs a verb and returns the one line about its output."""
    monkeypatch.chdir(tmp_path)

    def call(verb: str, out: str) -> str:
        if verb in VERBS:
            shipped = CONFIGS / VERBS[verb].example / f"{verb}.toml"
            arguments = [verb, str(shipped), "--set", f"output={out}"]
        else:
            arguments = OTHERS[verb](out)
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        shown = capfd.readouterr()
        assert (ended.value.code, shown.out) == (2, ""), shown.err
        (line,) = shown.err.splitlines()
        return line

    return call


@pytest.mark.slow
@pytest.mark.parametrize("verb", [*VERBS, *OTHERS])
def test_every_verb_refuses_what_cannot_be_written_before_it_works(
    refused: Callable[[str, str], str], verb: str
) -> None:
    Path("file").write_text("")
    assert refused(verb, "file/below").endswith(" is a file; name another folder")
    assert "cannot be written" in refused(verb, "/proc/nowhere/below")


def test_nothing_is_left_of_the_question(tmp_path: Path) -> None:
    check_folder(str(tmp_path / "new" / "deeper"))
    check_file(str(tmp_path / "new" / "file"))
    assert not list(tmp_path.iterdir())


def test_names_that_no_file_may_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="written: File name too"):
        check_folder(str(tmp_path / ("a" * 300)))
    with pytest.raises(ConfigError, match="not a valid folder name"):
        check_folder(f"{tmp_path}/a\0b")
    with pytest.raises(ConfigError, match="is a folder; name a file"):
        check_file(str(tmp_path))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read-only"
    folder.mkdir()
    mounted = os.geteuid() == 0 and not any(
        subprocess.run(command, capture_output=True).returncode
        for command in (
            ["mount", "--bind", folder, folder],
            ["mount", "-o", "remount,ro,bind", folder],
        )
    )
    if not mounted:
        pytest.skip("no rights to mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_mounted_to_be_read(read_only: Path) -> None:
    with pytest.raises(ConfigError, match="written: Read-only file system"):
        check_folder(str(read_only / "out"))
