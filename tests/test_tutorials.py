"""The commands of the tutorials run in order, on data that a page makes; those for GPUs parse."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from trainrig import cli

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
EXAMPLE_PAGE = ROOT / "docs" / "your-data.md"
COMMANDS = get_command(cli.app).commands  # type: ignore[attr-defined]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = "**Not run "
# What each tutorial leaves when it has worked.
LEFT = {
    "align-with-rewards": "my-rl/exported/config.json",
    "predict-before-you-pay": "my-law/law/law.json",
    "pretrain-1b": "rehearsal/model/report.html",
    "run-on-spot": "my-spot/model/report.html",
    "tune-a-model": "my-tuned/exported/model.safetensors",
}
ON_RAY = {"align-with-rewards", "predict-before-you-pay"}
KILLING = {"run-on-spot"}


def list_blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a language: `bash` runs here, `sh` needs GPUs, a cloud or a network."""
    text = page.read_text(encoding="utf-8")
    return [block for found, block in BLOCK.findall(text) if found == language]


def list_commands(page: Path) -> list[str]:
    """Return the lines that call a program, without those of scripts inside them."""
    text = "".join(list_blocks(page, "bash") + list_blocks(page, "sh"))
    text = re.sub(r"^(.*<<'(\w+)').*?^\2$", r"\1", text, flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if line]


LINES = [(page.stem, line) for page in TUTORIALS for line in list_commands(page)]


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_command_is_known_and_its_options_exist(page: str, line: str) -> None:
    words = shlex.split(line)
    assert words[0] in {"bash", "cat", "hf", "mkdir", "python", "trainrig"}
    if words[0] == "bash":
        assert (ROOT / words[1]).is_file()
    if "trainrig" in words:
        name, *rest = words[words.index("trainrig") + 1 :]
        command = COMMANDS[name]
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        given = command.make_context(name, rest).params
        run_file = str(given.get("run_file", ""))
        assert not run_file.startswith("jobs/") or (ROOT / run_file).is_file()


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_says_first_what_was_not_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    introduction = text.partition("\n## ")[0]
    assert (NOT_RUN in introduction) == bool(list_blocks(page, "sh"))
    assert len(text.split()) <= 900
    assert {language for language, _ in BLOCK.findall(text)} <= {"bash", "sh", "text", "toml"}


MODEL = """
import json
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

tokenizer = tokenizers.Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    [json.loads(line)["body"] for line in open("notes.jsonl")],
    trainers.BpeTrainer(
        vocab_size=510,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ),
)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
fast.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)
fast.save_pretrained("base")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=512,
    eos_token_id=fast.eos_token_id,
)
LlamaForCausalLM(config).save_pretrained("base")
"""


def prepare(folder: Path, model: bool) -> None:
    """Write what a reader has before the first `bash` block: texts, chats, recipes and a model."""
    page = EXAMPLE_PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"^python - <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-c", example], cwd=folder, check=True)
    (folder / "jobs").symlink_to(ROOT / "jobs")
    if model:
        subprocess.run([sys.executable, "-c", MODEL], cwd=folder, check=True)


def list_marks(page: Path) -> list[pytest.MarkDecorator]:
    if page.stem in KILLING:
        return [pytest.mark.chaos, pytest.mark.ray]
    return [pytest.mark.slow, pytest.mark.ray] if page.stem in ON_RAY else [pytest.mark.slow]


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=list_marks(page), id=page.stem) for page in TUTORIALS]
)
def test_a_tutorial_runs_as_it_is(page: Path, tmp_path: Path) -> None:
    prepare(tmp_path, model=page.stem == "tune-a-model")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["OMP_NUM_THREADS"] = "1"
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", "".join(list_blocks(page, "bash"))],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate()
    finally:  # after a timeout, too, no stage may go on
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    assert (tmp_path / LEFT[page.stem]).is_file()
    if page.stem in KILLING:
        lines = (tmp_path / "my-spot/model/events.jsonl").read_text(encoding="utf-8").splitlines()
        events = {json.loads(line)["event"] for line in lines}
        assert {"node_draining", "nodes_added", "finished"} <= events


def test_every_tutorial_leaves_something_to_check() -> None:
    assert {page.stem for page in TUTORIALS} == {*LEFT}
