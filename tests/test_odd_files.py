"""Files of another kind than a verb reads: one line, exit code 2, nothing on stdout."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig import cli
from trainrig.verbs import VERBS as VERBS_OF_RUN_FILES

VERBS: dict[str, Callable[[str], list[str]]] = {
    **{
        verb: lambda path, verb=verb: [verb, path, "--json"]  # type: ignore[misc]
        for verb in (
            *VERBS_OF_RUN_FILES,
            *("check", "report", "runs", "compare", "leaderboard", "fit"),
        )
    },
    "generate": lambda path: ["generate", path, "--prompt", "x", "--json"],
    "chat": lambda path: ["chat", path],
    "trace": lambda path: ["trace", path, "--step", "1", "--json"],
    "average": lambda path: ["average", path, "out", "--last", "2", "--json"],
    "predict": lambda path: ["predict", path, "--params", "1B", "--tokens", "20B", "--json"],
    "mixture": lambda path: ["mixture", path, path, "--json"],
    "plan": lambda path: ["plan", path, "--flops", "1e18", "--json"],
    "plan --hardware": lambda path: [
        *("plan", "hoffmann", "--flops", "1e18", "--hardware", path, "--json")
    ],
    "check --hardware": lambda path: ["check", "curate.toml", "--hardware", path, "--json"],
    "curate benchmark": lambda path: [
        *("curate", "curate.toml", "--json", "--set", f"decontamination.benchmarks.0.path={path}")
    ],
    "export": lambda path: ["export", path, "out", "--json"],
    "import": lambda path: ["import", path, "out", "--json"],
    "tokens inspect": lambda path: ["tokens", "inspect", path, "--json"],
    "cluster check": lambda path: ["cluster", "check", path, "--json"],
    "logs": lambda path: ["logs", "x", "--home", path],
}
CURATE = """
stage = "curate"
output = "documents"
workers = 0
[[sources]]
name = "pages"
paths = ["pages.jsonl"]
[[decontamination.benchmarks]]
name = "b"
path = "none"
fields = ["q"]
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "curate.toml").write_text(CURATE)
    (folder / "pages.jsonl").write_text('{"text": "a page"}\n')
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "latin").write_bytes('stage = "curate" # café\n'.encode("latin-1"))
    (folder / "twice.toml").write_text('stage = "curate"\noutput = "x"\noutput = "y"\n')
    (folder / "utf16").write_text('stage = "curate"\n', encoding="utf-16")
    (folder / "unreadable").symlink_to("/proc/self/mem")  # EIO at its first byte
    (folder / "dangling").symlink_to("nowhere")
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_says_in_a_line_what_is_wrong_with_a_file(
    verb: str, odd: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(odd)
    names = (
        *("missing", "folder", "empty", "binary", "latin", "twice.toml", "utf16", "empty/below"),
        *("unreadable", "dangling"),
    )
    for name in names:
        with pytest.raises(SystemExit) as ended:
            cli.main(VERBS[verb](name))
        shown = capfd.readouterr()
        assert (ended.value.code, shown.out) == (2, ""), (name, shown.err)
        assert shown.err.startswith("trainrig: ") and shown.err.count("\n") == 1, (name, shown.err)
