"""`init` writes a project that `run` takes from own data to an exported model, in two commands."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from support.waiting import wait_until

from trainrig import cli
from trainrig.errors import DataError
from trainrig.projects.project_verbs import run_project

GUIDE = Path(__file__).parents[2] / "docs" / "your-data.md"


def write_script(folder: Path, *commands: str) -> str:
    folder.mkdir()
    (folder / "run.sh").write_text("".join(f"trainrig {command}\n" for command in commands))
    return str(folder)


def test_stages_run_in_order_in_the_folder_of_the_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_script(tmp_path / "project", "tokenize a.toml", "export b c")
    done: list[tuple[str, ...]] = []

    def perform(words: Sequence[str]) -> None:
        assert Path.cwd() == tmp_path / "project"
        print("a line of a stage")
        done.append(tuple(words))

    before = Path.cwd()
    run_project(folder, perform, as_json=True)
    assert Path.cwd() == before
    assert done == [("tokenize", "a.toml"), ("export", "b", "c")]
    printed = json.loads(capsys.readouterr().out)  # lines of stages are not on standard output
    assert [stage["command"] for stage in printed["stages"]] == [
        "trainrig tokenize a.toml",
        "trainrig export b c",
    ]


@pytest.mark.parametrize("problem", [DataError("no rows"), KeyboardInterrupt(), typer.Exit(75)])
def test_a_stage_that_fails_or_stops_ends_the_run(tmp_path: Path, problem: BaseException) -> None:
    folder = write_script(tmp_path / "project", "tokenize a.toml", "export b c")
    done: list[str] = []

    def perform(words: Sequence[str]) -> None:
        done.append(words[0])
        raise problem

    with pytest.raises(type(problem)) as ended:
        run_project(folder, perform)
    assert done == ["tokenize"]
    if isinstance(problem, KeyboardInterrupt):
        assert ended.value.args == ("run the same command to continue",)


@pytest.mark.parametrize(
    ("command", "code"), [("tokenize none.toml", 2), ("no-verb a.toml", 2), ("schema pretrain", 0)]
)
def test_the_exit_code_is_that_of_the_stage(
    tmp_path: Path, command: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_script(tmp_path / "project", command)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "project"])
    assert (ended.value.code or 0) == code
    assert Path.cwd() == tmp_path


def test_init_writes_nothing_for_data_that_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(SystemExit) as ended:
        cli.main(["init", "tune", "project", "--data", "rows.jsonl"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "rows have the columns `id`" in line
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def start(folder: Path, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "trainrig", *words],
        cwd=folder,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(folder: Path, *words: str, typed: str = "") -> str:
    process = start(folder, *words, stdin=subprocess.PIPE)
    printed, _ = process.communicate(typed)
    assert process.returncode == 0, printed
    return printed


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_two_commands_make_a_model_of_own_data_and_a_kill_changes_no_byte(tmp_path: Path) -> None:
    """All commands of the guide run, on the 200 documents and 50 chats that its example makes."""
    page = GUIDE.read_text(encoding="utf-8")
    example = re.findall(r"^python - <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)[0]
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)
    blocks = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (init, run), results, imported = (
        [line.split()[1:] for line in block.splitlines()] for block in blocks
    )
    finish(tmp_path, *init, "--gpus", "0")
    whole = tmp_path / run[1]
    killed = Path(shutil.copytree(whole, tmp_path / "killed"))

    process = start(tmp_path, "run", "killed")
    wait_until(
        lambda: list(killed.glob("model/checkpoints/*/*/manifest.json")),
        process=process,
        seconds=900,
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "exported").exists()
    finish(tmp_path, "run", "killed")

    print(finish(tmp_path, *run, "--json"))  # the seconds of the stages
    exported = read_files(whole / "exported")
    assert exported == read_files(killed / "exported")
    again = finish(tmp_path, *run)
    assert again.count("the output is finished") == 5  # all stages but the export
    assert read_files(whole / "exported") == exported

    for words in results:  # `chat` reads its questions from standard input
        assert finish(tmp_path, *words, typed="What does str.find do?\n").strip()
    (generate,) = re.findall(r'^python -c "(.*)"$', page, re.MULTILINE)
    subprocess.run([sys.executable, "-c", generate], cwd=tmp_path, check=True)
    (tmp_path / "hf-folder").symlink_to(whole / "exported")
    for words in imported:
        finish(tmp_path, *words)
    assert (tmp_path / imported[-1][1] / "exported" / "model.safetensors").is_file()

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(whole / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "exported")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What does str.find do?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert answer.shape[1] > prompt["input_ids"].shape[1]
