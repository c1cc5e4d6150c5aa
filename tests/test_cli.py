"""The command line: its output on each stream, and its exit codes."""

import contextlib
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from trainrig import cli, config
from trainrig.corpus.read import RawPage
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.train.checkpoint import write_model
from trainrig.verbs import OTHER_NAMES, VERBS

SCRIPT = Path(sys.executable).with_name("trainrig")
COMMANDS = sorted(get_command(cli.app).commands)  # type: ignore[attr-defined]
WORDS = (
    *("wharf", "lantern", "copper", "thistle", "meadow", "harvest", "kettle", "orchard", "saddle"),
    *("gravel", "willow", "ferry", "anvil", "barley", "cobble", "drizzle", "ember", "furrow"),
)
MODEL = {"layers": 1, "channels": 32, "heads": 4, "positions": 48}


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int | str | None
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """Return the one JSON object on stdout."""
        assert (self.code, self.out.count("\n")) == (0, 1), self.err
        return json.loads(self.out)


Trainrig = Callable[..., Ended]


@pytest.fixture
def trainrig(capsys: pytest.CaptureFixture[str]) -> Iterator[Trainrig]:
    """Return `trainrig("check", "run.toml")`, which runs the command in this process."""

    def call(*arguments: str | Path) -> Ended:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Ended(ended.value.code, shown.out, shown.err)

    logger = logging.getLogger("trainrig")
    before = logger.handlers, logger.level, logger.propagate
    yield call
    logger.handlers, logger.level, logger.propagate = before


def call_aside(*arguments: str | Path) -> Ended:
    """Run a command in this process, for fixtures of a whole file, and restore all it changes.

    tests/smoke/test_quickstart.py runs all such commands as separate processes.
    """
    logger = logging.getLogger("trainrig")
    threads = torch.get_num_threads()
    before = list(logger.handlers), logger.level, logger.propagate
    out = io.StringIO()
    err = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return Ended(end.code, out.getvalue(), err.getvalue())
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
        torch.set_num_threads(threads)
    raise AssertionError("a command ends with its exit code")


def run_script(*arguments: str | Path, **environment: str) -> Ended:
    """Run the installed script in a separate process."""
    ended = subprocess.run(
        [SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


# --- help


def test_every_verb_is_explained(trainrig: Trainrig) -> None:
    shown = trainrig("--help")
    assert shown.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in shown.out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_verb_has_help_for_itself_and_all_its_options(trainrig: Trainrig, name: str) -> None:
    shown = trainrig(name, "--help")
    assert shown.code == 0
    command = get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    assert command.help and command.help.split("\n")[0] in " ".join(shown.out.split())
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    assert [p.name for p in options if not p.help] == []
    for option in options:
        assert option.opts[0] in shown.out


def test_help_does_not_wait_for_torch_or_ray() -> None:
    code = (
        "import sys\nfrom trainrig import cli\n"
        "try: cli.main(['pretrain', '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'ray', 'numpy', 'pyarrow'} & {*sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["sft", "dpo", "finetune"])
def test_the_name_of_another_tool_is_answered_with_the_verb(trainrig: Trainrig, name: str) -> None:
    assert "Did you mean 'posttrain'?" in trainrig(name, "run.toml").err
    assert "did you mean 'posttrain'?" in trainrig("schema", name).err
    assert name not in COMMANDS


def test_names_of_other_tools_stand_for_verbs() -> None:
    assert set(OTHER_NAMES.values()) <= set(COMMANDS)
    assert not set(OTHER_NAMES) & set(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [("predict", "hoffmann", "--params", "1B", "--tokens", "20B"), ("cluster", "check", "local")],
)
def test_json_before_the_verb_is_the_same_as_after(
    trainrig: Trainrig, words: tuple[str, ...]
) -> None:
    after = trainrig(*words, "--json")
    assert after.code == 0
    assert trainrig("--json", *words) == after
    json.loads(after.out)


def test_json_before_a_verb_without_json_is_refused(trainrig: Trainrig) -> None:
    ended = trainrig("--json", "chat", "model")
    assert ended.code == 2
    assert "'chat' has no JSON result; leave out `--json`" in ended.err
    assert json.loads(trainrig("--json", "schema", "tokenize").out)["type"] == "object"


@pytest.mark.parametrize(
    "arguments",
    [
        ["pretrian", "run.toml"],
        ["pretrain"],
        ["pretrain", "run.toml", "--sett", "a=1"],
        ["pretrain", "run.toml", "more.toml"],
        ["generate", "model", "--prompt", "x", "--temperature", "-1"],
        ["generate", "model", "--prompt", "x", "--tokens", "0"],
        ["quickstart", "--workers", "0"],
    ],
)
def test_a_wrong_command_line_is_the_users_to_fix(trainrig: Trainrig, arguments: list[str]) -> None:
    ended = trainrig(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Usage: " in ended.err


def test_nothing_to_generate_from_is_the_users_to_fix(trainrig: Trainrig) -> None:
    ended = trainrig("generate", "model")
    assert (ended.code, ended.out) == (2, "")
    assert "or --prompts FILE with --out FILE" in ended.err


def test_the_installed_script_ends_with_our_code_and_one_line() -> None:
    ended = run_script("check", "none.toml")
    problem = f"none.toml: no such run file (looked in {Path.cwd()})"
    assert ended == Ended(2, "", f"trainrig: {problem}\n")


def test_versions_are_printed_for_people_and_for_machines(trainrig: Trainrig) -> None:
    machine = trainrig("--version", "--json").result
    assert {"trainrig", "python", "torch", "ray", "system"} <= machine.keys()
    shown = trainrig("--version")
    assert shown.code == 0
    assert dict(line.split(" ", 1) for line in shown.out.splitlines()) == machine


def test_the_level_of_messages_is_an_option_or_a_variable(
    trainrig: Trainrig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINRIG_LOG_LEVEL", "error")
    assert trainrig("schema", "pretrain").code == 0
    assert logging.getLogger("trainrig").level == logging.ERROR
    assert trainrig("--log-level", "debug", "schema", "pretrain").code == 0
    assert logging.getLogger("trainrig").level == logging.DEBUG
    ended = trainrig("--log-level", "warn", "schema", "pretrain")
    assert (ended.code, ended.out) == (2, "")
    assert "no level 'warn'; did you mean 'warning'?" in ended.err


# --- a series of tiny stages, none of which needs Ray


def write_pages(path: Path) -> Path:
    dice = random.Random(path.name)
    pages = []
    for number in range(30):
        lines = [" ".join(dice.choices(WORDS, k=9)).capitalize() + "." for _ in range(12)]
        url = f"https://pages.example/{number}"
        body = "\n".join(lines).encode()
        pages.append(RawPage(url, "text/plain", body, "2026-01-01T00:00:00Z", "utf-8"))
    write_warc(str(path), pages)
    return path


RUN_FILES = {
    "curate": """
stage = "curate"
output = "{at}/documents"
workers = 0

[[sources]]
name = "pages"
paths = ["{at}/pages.warc.gz"]
filters = [{{ kind = "Length", min_characters = 50 }}]
""",
    "classifier": """
stage = "classifier"
output = "{at}/classifier"
positives = {{ paths = ["{at}/documents/kept/*"] }}
negatives = {{ paths = ["{at}/documents/kept/*"] }}
""",
    "ngrams": """
stage = "ngrams"
output = "{at}/ngrams"
texts = {{ paths = ["{at}/documents/kept/*"] }}
""",
    "tokenizer": """
stage = "tokenizer"
documents = "{at}/documents"
output = "{at}/tokenizer"

[tokenizer]
kind = "ByteLevelBPE"
vocabulary = 280
""",
    "tokenize": """
stage = "tokenize"
documents = "{at}/documents"
tokenizer = "{at}/tokenizer"
output = "{at}/tokens"
workers = 0
held_out = 0.3
""",
    "pretrain": """
stage = "pretrain"
tokens = "{at}/tokens"
output = "{at}/model"

[model]
layers = 1
channels = 32
heads = 4
positions = 48

[batches]
sequence_length = 32
global_batch = 4
micro_batch = 2

[training]
steps = 3
""",
    "conversations": """
stage = "conversations"
tokenizer = "{at}/fresh"
output = "{at}/chats"
workers = 0
sequence_length = 48

[[sources]]
paths = ["{at}/lessons.jsonl"]
source = "chats"
split = "train"
""",
    "posttrain": """
stage = "posttrain"
checkpoint = "{at}/fresh"
conversations = "{at}/chats"
output = "{at}/tuned"

[batches]
sequence_length = 48
global_batch = 2
micro_batch = 2

[training]
steps = 2
""",
    "rl": """
stage = "rl"
checkpoint = "{at}/fresh"
output = "{at}/aligned"
prompts.paths = ["{at}/lessons.jsonl"]
prompts.template = "{{{{ messages[0].content }}}}"
rollouts = {{ prompts = 2, samples = 2, micro_batch = 2, prompt_tokens = 16, maximum_tokens = 4 }}
rewards = [{{ kind = "PatternShape", pattern = "e", whole = false }}]
training.steps = 2
""",
    "score": """
stage = "score"
checkpoint = "{at}/reward"
paths = ["{at}/lessons.jsonl"]
output = "{at}/scored"
workers = 0
""",
    "evaluate": """
stage = "evaluate"
checkpoint = "{at}/fresh"
tokens = "{at}/tokens"
output = "{at}/scores"
sequence_length = 32
""",
    "index": """
stage = "index"
tokens = ["{at}/tokens"]
output = "{at}/index"
workers = 0
""",
    "teacher": """
stage = "teacher"
checkpoint = "{at}/fresh"
conversations = "{at}/chats"
entries = 4
output = "{at}/teacher"
workers = 0
""",
    "sample": """
stage = "sample"
checkpoint = "{at}/fresh"
output = "{at}/samples"
workers = 0
samples = 2
prompt_tokens = 16
maximum_tokens = 4
prompts.paths = ["{at}/lessons.jsonl"]
prompts.template = "{{{{ messages[0].content }}}}"
rewards = [{{ kind = "PatternShape", pattern = "e", whole = false }}]
""",
    "constitutional": """
stage = "constitutional"
checkpoint = "{at}/fresh"
output = "{at}/constitutional"
workers = 0
principles = "{at}/principles.txt"
prompt_tokens = 16
maximum_tokens = 4
prompts.paths = ["{at}/lessons.jsonl"]
prompts.template = "{{{{ messages[0].content }}}}"
""",
    "embed": """
stage = "embed"
checkpoint = "{at}/fresh"
documents = "{at}/documents"
output = "{at}/embeddings"
workers = 0
""",
    "sweep": """
stage = "sweep"
tokens = "{at}/tokens"
output = "{at}/sweep"

[design]
kind = "Grid"
parameters = [6_000, 12_000]
tokens = [2_000]

[batches]
sequence_length = 32

[training]
fewest_steps = 4
""",
    "mixture": """
stage = "mixture"
tokens = "{at}/tokens-of-several"
output = "{at}/mixture"

[proxy]
parameters = 6_000
tokens = 2_000
runs = 8

[batches]
sequence_length = 32

[training]
fewest_steps = 4
""",
}


def write_run_files(folder: Path, at: Path) -> None:
    """Write a run file for each verb in `folder`, with inputs and outputs below `at`."""
    for verb, text in RUN_FILES.items():
        (folder / f"{verb}.toml").write_text(text.format(at=at).lstrip())


@dataclass(frozen=True)
class Made:
    """Folder with run files and the results of the stages that need no Ray."""

    at: Path
    ended: dict[str, Ended]  # verb → result of its first call

    def run_file(self, verb: str) -> Path:
        return self.at / f"{verb}.toml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    at = tmp_path_factory.mktemp("made")
    write_pages(at / "pages.warc.gz")
    write_run_files(at, at)
    turns = [{"role": role, "content": "ember"} for role in ("user", "assistant")]
    (at / "lessons.jsonl").write_text(2 * (json.dumps({"messages": turns}) + "\n"))
    (at / "principles.txt").write_text("Answer the question that was asked.\n")
    ended = {}
    for verb in ("curate", "tokenizer", "tokenize"):
        ended[verb] = call_aside(verb, at / f"{verb}.toml", "--json")
        assert ended[verb].code == 0, ended[verb].err
    sizes = DecoderConfig(**MODEL, vocabulary=320)
    model = Decoder(sizes)
    initialise(model, seed=1)
    tokenizer = (at / "tokens" / "tokenizer.json").read_text()
    write_model(str(at / "fresh"), sizes, tokenizer, model.state_dict())
    scored = sizes.with_score_head()
    model = Decoder(scored)
    initialise(model, seed=1)
    write_model(str(at / "reward"), scored, tokenizer, model.state_dict())
    ended["conversations"] = call_aside("conversations", at / "conversations.toml", "--json")
    assert ended["conversations"].code == 0, ended["conversations"].err
    ended["evaluate"] = call_aside("evaluate", at / "evaluate.toml", "--json")
    return Made(at, ended)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_run_file_whose_inputs_are_there_is_checked_without_torch(
    made: Made, verb: str, imported: Callable[..., tuple[list[str], str]]
) -> None:
    slow, said = imported("check", made.run_file(verb))
    assert slow == []
    assert "# parameters" in said or verb not in ("pretrain", "posttrain", "sweep")


@pytest.mark.parametrize(
    ("verb", "count", "value"),
    [
        ("curate", "documents_kept", 30),
        ("tokenizer", "vocabulary", 280),
        ("tokenize", "vocabulary", 280),
        ("evaluate", "step", 0),
    ],
)
def test_a_stage_prints_one_json_object_and_talks_elsewhere(
    made: Made, verb: str, count: str, value: int
) -> None:
    ended = made.ended[verb]
    assert ended.result[count] == value
    output = str(config.load(VERBS[verb].load_model(), str(made.run_file(verb))).output)
    assert ended.result["output"] == output
    assert ended.err.splitlines()[-1].startswith(f"{verb}: {output}: ")
    assert "\r" not in ended.err


@pytest.mark.parametrize("verb", ["curate", "tokenizer", "tokenize", "evaluate"])
def test_the_same_command_again_does_nothing_and_says_so(
    trainrig: Trainrig, made: Made, verb: str
) -> None:
    before = read_contents(made.at)
    again = trainrig(verb, made.run_file(verb), "--json")
    assert again.result == made.ended[verb].result
    # And no speed, which would be that of the first call.
    made_before, counts = again.err.splitlines()
    assert f"{again.result['output']}: the output is finished" in made_before
    assert counts == made.ended[verb].err.splitlines()[-1]
    assert read_contents(made.at) == before


def read_contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of every file below `folder`."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_json_a_stage_leaves_stdout_alone(trainrig: Trainrig, made: Made) -> None:
    ended = trainrig("curate", made.run_file("curate"))
    assert (ended.code, ended.out) == (0, "")
    assert "documents_kept 30" in ended.err


def test_settings_of_the_command_line_take_effect(
    trainrig: Trainrig, made: Made, tmp_path: Path
) -> None:
    changed = trainrig(
        *("tokenizer", made.run_file("tokenizer"), "--json"),
        *("--set", f"output={tmp_path}/other", "--set", "tokenizer.vocabulary=270"),
    ).result
    assert (changed["output"], changed["vocabulary"]) == (f"{tmp_path}/other", 270)


def test_a_checkpoint_speaks_and_is_exchanged(
    trainrig: Trainrig, made: Made, tmp_path: Path
) -> None:
    greedy = ("--prompt", "Meadow", "--temperature", "0", "--tokens", "5", "--json")
    spoken = trainrig("generate", made.at / "fresh", *greedy).result
    assert spoken.keys() == {"prompt", "text", "stopped"}
    assert trainrig("export", made.at / "fresh", tmp_path / "hf", "--json").result == {
        "output": f"{tmp_path}/hf",
        "checkpoint": str(next((made.at / "fresh" / "checkpoints").glob("*/*"))),
        "step": 0,
        "family": "llama",
    }
    back = trainrig("import", tmp_path / "hf", tmp_path / "back", "--json").result
    sizes = DecoderConfig(**MODEL, vocabulary=320)
    assert back["parameters"] == sum(p.numel() for p in Decoder(sizes).parameters())
    assert trainrig("generate", tmp_path / "back", *greedy).result == spoken


def test_generated_text_is_the_whole_stdout_without_json(trainrig: Trainrig, made: Made) -> None:
    arguments = ("generate", made.at / "fresh", "--prompt", "Meadow", "--tokens", "5")
    spoken = trainrig(*arguments, "--json").result
    assert trainrig(*arguments).out == spoken["text"] + "\n"


@pytest.mark.ray
@pytest.mark.slow
def test_stages_that_train_print_one_json_object_too(local_ray: None, made: Made) -> None:
    """They use this process's Ray; smoke/test_quickstart.py runs each with its own Ray."""
    pretrained = call_aside("pretrain", made.run_file("pretrain"), "--json")
    assert (pretrained.result["steps"], pretrained.result["output"]) == (3, f"{made.at}/model")
    assert "Ray logs:" not in pretrained.err  # Ray's files are deleted
    tuned = call_aside("posttrain", made.run_file("posttrain"), "--json")
    assert (tuned.result["steps"], tuned.result["output"]) == (2, f"{made.at}/tuned")


# --- check


@pytest.mark.parametrize("verb", VERBS)
def test_check_prints_a_run_file_that_loads_as_the_same_run(
    trainrig: Trainrig, made: Made, tmp_path: Path, verb: str
) -> None:
    model = VERBS[verb].load_model()
    run_file = str(made.run_file(verb))
    shown = trainrig("check", run_file)
    assert (shown.code, shown.err) == (0, "")
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(shown.out)
    run = config.load(model, run_file)
    assert config.load(model, str(resolved)) == run
    assert trainrig("check", run_file, "--json").result["run"] == run.model_dump(mode="json")


def test_check_lists_inputs_patterns_and_packages_that_are_missing(
    trainrig: Trainrig, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.at)
    assert trainrig("check", made.run_file("pretrain"), "--json").result["problems"] == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sinks = 'training.metrics.sinks=[{kind="WandB"}]'
    shown = trainrig("check", made.run_file("pretrain"), "--set", "tokens=none", "--set", sinks)
    first, second = [line for line in shown.out.splitlines() if line.startswith("# problem: ")]
    assert first == f"# problem: tokens: none: does not exist (looked in {made.at})"
    assert "the package wandb, which is not installed; run `pip install -e " in second
    assert shown.code == 0  # an earlier stage may still have to make the input
    pattern = "sources.0.paths=['none-*.warc.gz']"
    (problem,) = trainrig("check", made.run_file("curate"), "--json", "--set", pattern).result[
        "problems"
    ]
    where = f"(looked in {made.at})"
    assert problem == f"sources[0].paths[0]: none-*.warc.gz: no file matches {where}"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("usd", 9_999.99, "9,999.99"),
        ("parameters", 427_207_872, "427,207,872 (427M)"),
        ("parameters", 512, "512"),
        ("hours", 181.6859, "181.7"),
    ],
)
def test_check_shows_money_and_counts_as_a_plan_does(name: str, value: float, shown: str) -> None:
    assert cli._format_figure(name, value) == shown


def test_check_counts_parameters_exactly_before_and_after_there_are_tokens(
    trainrig: Trainrig, made: Made, tmp_path: Path
) -> None:
    after = trainrig("check", made.run_file("pretrain"), "--json").result
    sizes = DecoderConfig(**MODEL, vocabulary=320)  # 280 entries, up to a multiple of 64
    exact = sum(p.numel() for p in Decoder(sizes).parameters())
    assert (after["parameters"], after["positions"]) == (exact, 3 * 4 * 32)
    write_run_files(tmp_path, tmp_path / "nothing-made")
    early = ("check", tmp_path / "pretrain.toml")
    assert "tokens/tokenizer.json exists" in trainrig(*early, "--json").result["parameters"]
    settled = (*early, "--set", "model.vocabulary=320")
    assert trainrig(*settled, "--json").result["parameters"] == exact
    assert f"# parameters: {exact:,}\n" in trainrig(*settled).out


def test_the_table_of_hardware_is_an_option_or_a_variable(
    trainrig: Trainrig, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = ("check", made.run_file("posttrain"))
    monkeypatch.setenv("TRAINRIG_HARDWARE", "of-the-variable.toml")
    assert "of-the-variable.toml" in trainrig(*checked).err
    assert "of-the-option.toml" in trainrig(*checked, "--hardware", "of-the-option.toml").err


def test_check_estimates_tuning_of_a_preset_before_there_is_a_checkpoint(
    trainrig: Trainrig, made: Made
) -> None:
    absent = ("check", made.run_file("posttrain"), "--set", "checkpoint=none", "--device", "h100")
    assert "hours" not in trainrig(*absent, "--json").result
    found = trainrig(*absent, "--preset", "llama-3.2-1b", "--json").result
    assert found["parameters"] == 1_235_814_400 and found["hours"] > 0
    wrong = trainrig(*absent, "--preset", "llama-1b")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("trainrig: --preset: no preset 'llama-1b'; did you mean 'llama-")
    other = trainrig("check", made.run_file("tokenize"), "--preset", "llama-3.2-1b")
    assert other.code == 2 and "`tokenize` tunes no checkpoint" in other.err


def test_check_names_the_stage_that_was_meant(trainrig: Trainrig, tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text('stage = "pretrian"\n')
    problem = f"trainrig: {run_file}: no stage 'pretrian'; did you mean 'pretrain'?\n"
    assert trainrig("check", run_file) == Ended(2, "", problem)
    run_file.write_text("steps = 3\n")
    assert trainrig("check", run_file).err.startswith(f"trainrig: {run_file}: `stage` is missing")


# --- invalid input of the user


def get_error_line(ended: Ended) -> str:
    """Return the one error line."""
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("trainrig: ")
    return line.removeprefix("trainrig: ")


@pytest.mark.parametrize(
    ("verb", "old", "new", "line", "problem"),
    [
        (
            *("curate", "workers = 0", "worker = 0", 3),
            "no key 'worker' in Curation; did you mean 'workers'?",
        ),
        (
            *("curate", "min_characters", "min_charaters", 8),
            "sources[0].filters[0]: no key 'min_charaters' in Length; did you mean "
            "'min_characters'? (and 1 more)",
        ),
        (
            *("pretrain", "steps = 3", 'steps = "three"', 17),
            "training.steps: input should be a valid integer, found 'three'",
        ),
        (
            *("pretrain", "steps = 3", "steps = 3.0", 17),
            "training.steps: input should be a valid integer, found 3.0",
        ),
        (
            *("tokenizer", '"ByteLevelBPE"', '"ByteBPE"', 6),
            "tokenizer: no kind 'ByteBPE'; did you mean 'ByteLevelBPE'?",
        ),
        (
            *("pretrain", "sequence_length = 32", "sequence_length = 64", None),
            "sequence_length (64 tokens) is beyond the model's 48 positions; lower it, or set "
            "model.positions = 64",
        ),
    ],
)
def test_a_wrong_run_file_is_refused_by_file_and_line(
    trainrig: Trainrig,
    tmp_path: Path,
    verb: str,
    old: str,
    new: str,
    line: int | None,
    problem: str,
) -> None:
    write_run_files(tmp_path, tmp_path)
    run_file = tmp_path / f"{verb}.toml"
    run_file.write_text(run_file.read_text().replace(old, new))
    before = read_contents(tmp_path)
    where = f"{run_file}:{line}" if line else str(run_file)
    for command in (verb, "check"):
        assert get_error_line(trainrig(command, run_file)) == f"{where}: {problem}"
    assert read_contents(tmp_path) == before


@pytest.mark.parametrize(
    ("verb", "changes", "problem"),
    [
        ("curate", ["sources.0.paths=['{at}/none.warc.gz']"], "{at}/none.warc.gz: no such file"),
        ("curate", ["sources.0.paths=['{at}/*.warc']"], "{at}/*.warc: the pattern matches no file"),
        ("tokenizer", ["documents='{at}/none'"], "{at}/none: no such folder; run the stage"),
        (
            "tokenizer",
            ["documents='{at}/tokens'"],
            "{at}/tokens: is the output of `tokenize`, not of",
        ),
        (
            "tokenize",
            ["tokenizer='{at}/documents'"],
            "{at}/documents: is the output of `curate`, not of",
        ),
        ("pretrain", ["tokens='{at}/none'"], "{at}/none: no such folder; run the stage"),
        ("pretrain", ["model.vocabulary=100"], "model.vocabulary (100) is below the tokenizer's"),
        ("posttrain", ["checkpoint='{at}/none'"], "{at}/none"),
        (
            "score",
            ["checkpoint='{at}/none'"],
            "{at}/none: no such folder; name the folder",
        ),
        ("score", ["checkpoint='{at}/fresh'"], "checkpoint: {at}/fresh/"),
        ("posttrain", ["conversations='{at}/none'"], "{at}/none: no such folder; run the stage"),
        ("posttrain", ["batches.sequence_length=49"], "batches: sequence_length (49 tokens) is"),
        ("evaluate", ["checkpoint='{at}/none'"], "{at}/none"),
    ],
)
def test_inputs_that_cannot_work_are_refused_and_nothing_is_written(
    trainrig: Trainrig, made: Made, tmp_path: Path, verb: str, changes: list[str], problem: str
) -> None:
    names = {"at": made.at, "out": tmp_path / "out"}
    given = [f"output='{tmp_path}/out'", *(change.format(**names) for change in changes)]
    before = read_contents(made.at)
    options = [word for change in given for word in ("--set", change)]
    line = get_error_line(trainrig(verb, made.run_file(verb), *options))
    assert line.startswith(problem.format(**names))
    assert read_contents(made.at) == before
    assert read_contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("verb", "change", "problem"),
    [
        (
            "curate",
            "sources.0.paths=['{at}/curate.toml']",
            "{at}/curate.toml: unknown format: the file begins with",
        ),
        ("tokenizer", "tokenizer.vocabulary=60000", "tokenizer.vocabulary: 27 texts of"),
        ("evaluate", "sequence_length=49", "sequence_length (49) exceeds the model's 48"),
    ],
)
def test_an_error_found_during_the_work_leaves_no_output(
    trainrig: Trainrig, made: Made, tmp_path: Path, verb: str, change: str, problem: str
) -> None:
    names = {"at": made.at, "out": tmp_path / "out"}
    given = ("--set", f"output='{tmp_path}/out'", "--set", change.format(**names))
    before = read_contents(made.at)
    ended = trainrig(verb, made.run_file(verb), *given)
    *progress, line = ended.err.splitlines(keepends=True)
    assert all(re.fullmatch(rf"{verb}: \d+ of \d+ splits\n", said) for said in progress)
    assert get_error_line(Ended(ended.code, ended.out, line)).startswith(problem.format(**names))
    assert read_contents(made.at) == before
    assert not (tmp_path / "out").exists()
    output = f"--set=output='{tmp_path}/next'"
    reader = {"curate": ("tokenizer", "documents"), "tokenizer": ("tokenize", "tokenizer")}
    if verb in reader:  # and no later stage mistakes it for its input
        later, role = reader[verb]
        took = trainrig(later, made.run_file(later), output, f"--set={role}='{tmp_path}/out'")
        assert "out: no such folder" in get_error_line(took)


@pytest.mark.slow
def test_an_archive_that_is_torn_in_the_middle_is_no_end_of_a_crawl(
    trainrig: Trainrig, made: Made, tmp_path: Path
) -> None:
    whole = (made.at / "pages.warc.gz").read_bytes()
    (tmp_path / "torn.warc.gz").write_bytes(whole[:-200])  # cut in the last page's text
    counts = trainrig(
        *("curate", made.run_file("curate"), "--json", "--set", f"output={tmp_path}/out"),
        *("--set", f"sources.0.paths=['{tmp_path}/torn.warc.gz']"),
    ).result
    assert (counts["documents_kept"], counts["documents_in"]) == (29, 30)
    assert sum(counts["quarantined"].values()) == 1


def test_a_folder_made_by_another_run_is_left_as_it_is(trainrig: Trainrig, made: Made) -> None:
    before = read_contents(made.at)
    changed = ("--set", "tokenizer.vocabulary=270")
    line = get_error_line(trainrig("tokenizer", made.run_file("tokenizer"), *changed))
    assert line.startswith(f"{made.at}/tokenizer: made by another run (tokenizer.vocabulary: 280")
    line = get_error_line(
        trainrig("tokenize", made.run_file("tokenize"), "--set", f"output={made.at}/documents")
    )
    assert "by `curate`, not `tokenize`" in line
    assert read_contents(made.at) == before


def test_a_folder_to_export_or_import_into_must_be_new(
    trainrig: Trainrig, made: Made, tmp_path: Path
) -> None:
    exported = tmp_path / "hf"
    assert trainrig("export", made.at / "fresh", exported).code == 0
    before = read_contents(tmp_path) | read_contents(made.at)
    line = get_error_line(trainrig("export", made.at / "fresh", exported))
    assert line.startswith(f"{exported}: already holds a model")
    line = get_error_line(trainrig("import", exported, made.at / "tokens"))
    assert line.startswith(f"{made.at}/tokens: not empty")
    line = get_error_line(
        trainrig("export", made.at / "fresh", tmp_path / "new", "--dtype", "float8")
    )
    assert line.startswith("export --dtype: dtype: 'float8' is none of ")
    get_error_line(trainrig("import", made.at / "tokens", tmp_path / "new"))
    assert read_contents(tmp_path) | read_contents(made.at) == before


def test_the_card_of_an_exported_model_has_its_scores(
    trainrig: Trainrig, made: Made, tmp_path: Path
) -> None:
    scores = json.loads(made.ended["evaluate"].out)["output"]
    told = ("--license", "apache-2.0", "--dataset", "owner/one", "--dataset", "owner/two")
    assert (
        trainrig("export", made.at / "fresh", tmp_path / "hf", "--scores", scores, *told).code == 0
    )
    card = (tmp_path / "hf" / "README.md").read_text()
    assert card.startswith("---\n")
    assert 'license: "apache-2.0"\ndatasets: ["owner/one", "owner/two"]\n' in card
    (row,) = (line for line in card.splitlines() if line.startswith("| pages |"))
    (score,) = json.loads(Path(scores, "scorecard.json").read_text())["scores"].values()
    assert row.split(" | ")[1] == f"{score['bits_per_byte']:.4f}"
    line = get_error_line(
        trainrig("export", made.at / "reward", tmp_path / "no", "--scores", scores)
    )
    assert line.startswith(f"--scores {scores}: this evaluation is of {made.at}/fresh/")
    line = get_error_line(
        trainrig("export", made.at / "fresh", tmp_path / "no", "--scores", tmp_path)
    )
    assert str(tmp_path) in line
    assert not (tmp_path / "no").exists()


def test_a_verb_without_a_run_file_has_no_schema(trainrig: Trainrig) -> None:
    assert get_error_line(trainrig("schema", "pretrian")) == (
        "schema: no run file for 'pretrian'; did you mean 'pretrain'?"
    )


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "allowed"), [("curate", ()), ("pretrain", ("--set", "training.virtual_workers=999"))]
)
def test_more_workers_than_cpus_are_refused_with_what_would_fit(
    local_ray: None,
    trainrig: Trainrig,
    made: Made,
    tmp_path: Path,
    verb: str,
    allowed: tuple[str, ...],
) -> None:
    out = tmp_path / "out"
    changes = ("--set", "workers=999", "--set", f"output='{out}'", *allowed)
    line = get_error_line(trainrig(verb, made.run_file(verb), *changes))
    assert re.fullmatch(
        r"workers: 999 workers of 1 CPU each, but Ray has (\d+) logical CPUs; "
        r"set workers = \1 or fewer, or add nodes",
        line,
    )
    # The folder is claimed for any number of workers: the same command with fewer continues.
    assert {path.name for path in out.rglob("*") if path.is_file()} <= {"stage.json", "run.toml"}
