"""The whole data path, small, as a user runs it.

The wheel is installed in a new environment, in a folder without a checkout. Then the commands of
README and docs/commands.md run one after the other.
"""

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from trainrig import config
from trainrig.config.run_file_text import to_toml
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.quickstart.quickstart_stages import PageMaking
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.verbs import VERBS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).parents[2]
# The run files of `jobs/configs/quickstart`, with smaller values.
SIZES = {
    "pages": [
        *("pages.docs_pages=150", "pages.code_pages=80", "pages.docs_files=2"),
        *("pages.duplicates=4", "pages.near_duplicates=4", "pages.foreign=4"),
        *("pages.personal_data=10", "pages.instructions=60", "pages.held_out_instructions=8"),
        *("pages.code_files=1", "pages.pairs=16"),
    ],
    "tokenizer": ["tokenizer.vocabulary=600", "sample.bytes=300000"],
    "tokenize": ["held_out=0.1"],
    "pretrain": [
        *("model.layers=2", "model.channels=64", "model.heads=4", "model.kv_heads=2"),
        *("batches.sequence_length=64", "batches.global_batch=16", "batches.micro_batch=8"),
        *("training.steps=160", "training.checkpoints.every=20"),  # README traces step 150
    ],
    "posttrain": [
        *("batches.sequence_length=256", "batches.global_batch=8", "batches.micro_batch=4"),
        *("training.steps=6", "training.checkpoints.every=6"),
    ],
    "dpo": [
        *("batches.global_batch=8", "batches.micro_batch=4", "training.held_out.rows=8"),
        *("training.steps=4", "training.held_out.every=4", "training.checkpoints.every=4"),
    ],
    "evaluate": ["sequence_length=128", "tokens_per_source=2000", "threads=1"],
    "sweep": [
        # Far enough apart that a scaling law can be fitted to runs of one seed.
        *("design.parameters=[5200, 20000, 80000]", "design.tokens=[16000, 64000, 256000]"),
        *("batches.sequence_length=64", "training.fewest_steps=30"),
    ],
}
# The same of the run files that docs/commands.md uses after the quickstart.
LATER_SIZES = {
    "preferences/posttrain": ["training.steps=4", "training.held_out.rows=8"],
    "reinforcement/rl": [
        *("training.steps=1", "rollouts.prompts=4", "rollouts.samples=4"),
        *("rollouts.micro_batch=8", "rollouts.maximum_tokens=8"),
    ],
    "distillation/posttrain": ["training.steps=4", "training.held_out.rows=8"],
    "distillation/sample": ["samples=2", "keep=1", "maximum_tokens=8"],
    "constitutional/constitutional": ["rounds=1", "maximum_tokens=8"],
}
# The first two wait for a browser and for a user; tests/projects runs whole projects.
NOT_HERE = {"watch", "chat", "run"}
SUMMARY = {
    *("documents_in", "documents_kept", "duplicates_planted", "duplicates_caught"),
    *("pii_planted", "pii_caught", "train_tokens", "parameters", "loss_first", "loss_last"),
    *(
        "bits_per_byte",
        "pairs_right",
        "restarts",
        "samples_lost",
        "samples_repeated",
        "seconds",
        "report",
    ),
}
# `trainrig check` of many files in one process.
CHECKED = "--- checked ---"
CHECK_EACH = f"""
import sys
from trainrig.cli import main
for run_file in sys.argv[1:]:
    try:
        main(["check", run_file])
    except SystemExit as end:
        if end.code:
            raise
    print({CHECKED!r})
"""
NO_LAW = "starts ended at a minimum with positive constants"
STAGES = {"pages", "documents", "tokens", "model", "tuned", "aligned", "scores"}
FOLDERS = {
    *("pages", "documents", "tokenizer", "tokens", "model", "conversations", "tuned"),
    *("pairs", "aligned", "scores-early", "scores-model", "scores-tuned", "scores-aligned"),
}


@dataclass(frozen=True)
class Installed:
    """Environment with the wheel installed, and a folder that holds only the run files."""

    bin: Path
    package: Path
    work: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `trainrig WORDS`, which must succeed."""
        ended = self.try_to_run(*words)
        assert ended.returncode == 0, f"{shlex.join(map(str, words))}\n{ended.stderr}"
        return ended

    def try_to_run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `trainrig WORDS`, and return the result also if it fails."""
        return subprocess.run(
            [self.bin / "trainrig", *words],
            capture_output=True,
            text=True,
            cwd=self.work,
            env=self.environment(),
        )

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment of a user without a checkout."""
        named = ("PYTHONPATH", "VIRTUAL_ENV", "RAY_ADDRESS")
        kept = {name: value for name, value in os.environ.items() if name not in named}
        return kept | {"OMP_NUM_THREADS": "1"}

    def answer(self, *words: str | Path) -> dict[str, Any]:
        """Return what `trainrig WORDS --json` prints."""
        printed = self.run(*words, "--json").stdout
        assert printed.count("\n") == 1
        return json.loads(printed)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    at = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    alone = ["--no-deps", "--no-index"]
    built = [*pip, "wheel", "--no-build-isolation", *alone, "-w", at, ROOT]
    subprocess.run(built, check=True)
    (wheel,) = at.glob("trainrig-*.whl")
    venv.create(at / "venv", symlinks=True)
    python = at / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", *alone, wheel], check=True)
    (site,) = (at / "venv" / "lib").glob("python*/site-packages")
    # Make dependencies importable, but not this checkout: no .pth file is read there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = at / "work"
    shutil.copytree(ROOT / "jobs", work / "jobs")
    for folder in (work / "jobs" / "configs", site / "trainrig" / "configs"):
        make_smaller(folder / "quickstart", SIZES)
        make_smaller(folder, LATER_SIZES)
    return Installed(python.parent, site / "trainrig", work)


def make_smaller(folder: Path, sizes: Mapping[str, Sequence[str]]) -> None:
    """Reduce the sizes of the run files below `folder`."""
    for name, changes in sizes.items():
        path = folder / f"{name}.toml"
        stage = config.parse(path.read_text(), str(path)).get("stage", "pages")
        model = PageMaking if stage == "pages" else VERBS[stage].load_model()
        path.write_text(to_toml(config.load(model, str(path), changes)), encoding="utf-8")


@dataclass(frozen=True)
class Walk:
    """Finished quickstart: its folder and its output."""

    out: Path
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.stdout)


def walk(installed: Installed, *more: str) -> Walk:
    ended = installed.run("quickstart", "--json", *more)
    return Walk(installed.work / "quickstart", ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def first(installed: Installed) -> Walk:
    return walk(installed)


def test_the_wheel_brings_run_files_and_clusters(installed: Installed) -> None:
    assert "trainrig 0." in installed.run("--version").stdout
    # This file belongs to the quickstart itself: no verb takes it.
    names = sorted(SIZES.keys() - {"pages"})
    files = [installed.package / "configs" / "quickstart" / f"{name}.toml" for name in names]
    python = [installed.bin / "python", "-c", CHECK_EACH, *files]
    checked = subprocess.run(
        python, capture_output=True, text=True, cwd=installed.work, env=installed.environment()
    )
    assert checked.returncode == 0, checked.stderr
    shown = checked.stdout.split(CHECKED)[:-1]
    assert len(shown) == len(files) and all("stage = " in text for text in shown)
    assert str(installed.package) in installed.run("cluster", "check", "local").stdout


def test_the_summary_is_one_json_object_alone_on_stdout(first: Walk) -> None:
    assert first.stdout.count("\n") == 1
    assert set(first.summary) >= SUMMARY
    assert set(first.summary["seconds"]) == STAGES
    assert first.summary["bits_per_byte"].keys() >= {"docs", "code"}
    assert first.summary["report"] == f"{first.out.name}/report.html"


def test_the_figures_of_the_summary_are_those_of_the_folders(first: Walk) -> None:
    summary = first.summary
    made = {name: json.loads((first.out / name / "manifest.json").read_text()) for name in FOLDERS}
    assert summary["documents_in"] == made["documents"]["counts"]["documents_in"]
    assert summary["duplicates_planted"] == 8
    assert summary["pii_planted"] == 10
    assert summary["duplicates_caught"] > 0
    assert summary["pii_caught"] > 0
    assert 0 < summary["documents_kept"] < summary["documents_in"]
    opened = checkpoint.open_model(str(first.out / "model"))
    assert summary["parameters"] == sum(p.numel() for p in opened.build().parameters())
    assert summary["train_tokens"] == 64 * 16 * 160


def test_both_models_learnt_something(first: Walk) -> None:
    summary = first.summary
    assert summary["loss_last"] < summary["loss_first"] - 0.5
    for domain in ("docs", "code"):
        assert 0 < summary["bits_per_byte"][domain] < 8  # a byte costs 8 bits without a model
    before = summary["bits_per_byte_pretrained"]
    after = summary["bits_per_byte_tuned"]
    assert after["conversations"] < before["conversations"]


def test_the_tuned_model_learns_of_right_and_wrong_answers(first: Walk) -> None:
    assert 0 <= first.summary["pairs_right"] <= 1
    lines = metrics.read_series(f"{first.out}/aligned")
    assert len(lines) == 4  # too few examples to learn from, so only the measurement is checked
    assert lines[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-6)
    page = (first.out / "report.html").read_text(encoding="utf-8")
    assert "on preference pairs" in page


def test_a_worker_is_killed_and_no_sample_is_lost_or_repeated(first: Walk) -> None:
    summary = first.summary
    assert (summary["restarts"], summary["samples_lost"], summary["samples_repeated"]) == (1, 0, 0)
    events = [event["event"] for event in RunFolder(f"{first.out}/model").read_events()]
    assert events.count("killed_by_quickstart") == events.count("attempt_failed") == 1
    assert "the process of rank 1 died" in first.stderr


def test_steps_taken_twice_have_the_same_loss_to_the_last_bit(first: Walk) -> None:
    lines = list(metrics.read_lines(f"{first.out}/model"))
    attempts = {number: {} for number in (1, 2)}
    for line in lines:
        attempts[line["attempt"]][line["step"]] = (line["train/loss"], line["train/grad_norm"])
    twice = attempts[1].keys() & attempts[2].keys()
    assert twice
    assert {step: attempts[1][step] for step in twice} == {
        step: attempts[2][step] for step in twice
    }
    assert sorted(attempts[1].keys() | attempts[2].keys()) == list(range(1, 161))


def test_the_report_holds_the_verdict(first: Walk) -> None:
    page = (first.out / "report.html").read_text(encoding="utf-8")
    assert '<div class="verdict done">' in page
    assert "one worker killed, 0 samples lost or repeated" in page
    for figure in ("documents_in", "documents_kept", "train_tokens"):
        assert f"{first.summary[figure]:,}" in page


def read_contents(out: Path) -> dict[str, tuple[str, int]]:
    """Return the digest and the modification time of each file except the report."""
    return {
        str(path.relative_to(out)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "report.html"
    }


def test_a_second_call_does_nothing_says_so_and_tells_the_same(
    first: Walk, installed: Installed
) -> None:
    before = read_contents(first.out)
    report = (first.out / "report.html").read_bytes()
    second = walk(installed)
    assert read_contents(first.out) == before
    assert (first.out / "report.html").read_bytes() == report
    assert second.stdout == first.stdout
    for folder in FOLDERS:
        assert f"/{folder}: the output is finished" in second.stderr
    # Earlier throughput is not reported again. Two models are tuned.
    for stage, folders in {"curate": 1, "tokenize": 1, "pretrain": 1, "posttrain": 2}.items():
        lines = [line for line in second.stderr.splitlines() if line.startswith(f"{stage}: ")]
        assert len(lines) == folders, second.stderr
        assert all(line.startswith(f"{stage}: quickstart/") for line in lines)


def list_later_commands() -> list[list[str]]:
    """Return the commands of README's tasks and of docs/commands.md, but those NOT_HERE."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\|.*\| `(trainrig [^`]+)` \|", readme, re.MULTILINE)
    assert len(lines) == 5
    for title in ("The data path, in order", "Commands after the quickstart"):
        section = page.partition(f"\n## {title}\n")[2]
        block = re.search(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert block
        lines += [line for line in block[1].splitlines() if line.strip()]
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words for words in commands if words[1] not in NOT_HERE]


@pytest.fixture(scope="module")
def followed(first: Walk, installed: Installed) -> dict[str, Walk]:
    """Run the commands of README and docs/commands.md in order, and return the output of each.

    The keys are the verb and its first argument, such as a run file; the last output counts.

    The quickstart itself is left out, as it would repeat all of the above; tests/test_readme.py
    parses its command. `fit` may find no law: the runs are tiny, with one seed, so their final
    losses are noise at any affordable size.
    """
    kept = sorted((first.out / "documents" / "kept").iterdir())
    urls = [url for path in kept for url in pq.read_table(path, columns=["url"])["url"].to_pylist()]
    (installed.work / "pages.txt").write_text("".join(f"{url}\n" for url in urls))
    said = {}
    for program, *words in list_later_commands():
        assert program == "trainrig"
        if words[0] != "quickstart":
            ended = installed.try_to_run(*words)
            if words[0] == "fit" and ended.returncode == 2 and NO_LAW in ended.stderr:
                continue
            assert ended.returncode == 0, f"{shlex.join(words)}\n{ended.stderr}"
            said[" ".join(words[:2])] = Walk(first.out, ended.stdout, ended.stderr)
    return said


def test_the_commands_of_the_pages_work_one_after_the_other(
    followed: dict[str, Walk], installed: Installed
) -> None:
    for stage in ("curate", "tokenizer", "tokenize", "conversations", "posttrain", "evaluate"):
        own = followed[f"{stage} jobs/configs/quickstart/{stage}.toml"]
        assert "the output is finished" in own.stderr, "the quickstart's own run files differ"
    for made in (
        "runs/documents",
        "runs/shorter/report.html",
        "runs/tuned",
        "hf-folder",
        "exported",
        "mix",
        "my-model/run.sh",
        "preferences/scored",
        "runs/rl/report.html",
        "runs/student/report.html",
        "runs/samples",
        "runs/constitutional",
        "runs/embeddings",
    ):
        assert (installed.work / made).exists()
    assert (installed.work / "laws/web").exists() == ("fit quickstart/sweep" in followed)


def test_a_sweep_adds_a_law_and_a_plan_and_repeats_nothing_of_the_rest(
    first: Walk, installed: Installed, followed: dict[str, Walk]
) -> None:
    before = read_contents(first.out)
    swept = walk(installed, "--sweep")
    assert read_contents(first.out).items() >= before.items()  # also the sweep's, which README made
    assert set(swept.summary["seconds"]) == STAGES | {"sweep"}
    found = swept.summary["scaling"]
    assert found["points"] == 9
    page = (first.out / "report.html").read_text(encoding="utf-8")
    assert "Scaling law: 9 runs of 3 sizes" in page
    if "problem" in found:  # on so little text, small models may learn too little for a law
        assert found["problem"].split(":")[0] in page
        return
    law = json.loads((first.out / "sweep" / "law.json").read_text())
    assert law["form"]["kind"] and found["worst_error"] < 0.5  # `fit` chooses the form
    planned = installed.answer("check", first.out / "planned.toml")
    assert planned["run"]["stage"] == "pretrain"


def test_the_model_continues_a_prompt(first: Walk, installed: Installed) -> None:
    arguments = ("generate", first.out / "model", "--prompt", "The module", "--tokens", "8")
    spoken = installed.answer(*arguments, "--seed", "3")
    assert spoken["prompt"] == "The module"
    assert spoken["text"]
    assert spoken["stopped"] in {"end", "length"}
    assert installed.answer(*arguments, "--seed", "3") == spoken


def test_a_checkpoint_goes_to_transformers_and_back(
    first: Walk, installed: Installed, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tuned = str(first.out / "tuned")
    written = installed.answer("export", tuned, tmp_path / "hf")
    assert (written["step"], written["output"]) == (6, str(tmp_path / "hf"))
    ours = TextGenerator.open(tuned)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    text = "The json module encodes é and 猫"
    ids = AutoTokenizer.from_pretrained(tmp_path / "hf")(text, add_special_tokens=False).input_ids
    assert ids == ours.encoder.encode_batch([text])[0].tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits
        torch.testing.assert_close(
            ours.model(torch.tensor([ids])).logits, expected, rtol=0, atol=1e-5
        )
    back = installed.answer("import", tmp_path / "hf", tmp_path / "back")
    assert back["parameters"] == first.summary["parameters"]
    greedy = ("--prompt", "What does `json.dumps` do?", "--chat", "--temperature", "0")
    assert installed.answer("generate", tmp_path / "back", *greedy) == installed.answer(
        "generate", tuned, *greedy
    )
