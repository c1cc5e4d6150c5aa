"""Hash what every stage makes, to prove that a change of the code changed no result.

    python tests/golden.py --out before.json            the hashes of the working tree
    python tests/golden.py --against COMMIT             of both; exits 1 and names what differs

A chain of tiny stages runs in a temporary folder: pages to documents, tokens, models, scores, laws.
Curation, tokens and training run with several numbers of workers, whose results must be equal. The
hashes depend on the kind of CPU and on library versions, so they are compared on one machine and
never committed. It takes five to eight minutes for a tree on 2 cores.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORKERS = (1, 2, 3)
# Ray on a machine of two cores has room for two workers, unless it is told of more.
RAY_RESOURCES = json.dumps({"CPU": max(WORKERS)})
LOGGED = ("step", "loss", "grad_norm", "held_out_loss", "reward")  # figures that no clock decides

CURATE = """stage = "curate"
output = "documents-{workers}"
workers = {workers}
[[sources]]
name = "web"
paths = ["pages/*.jsonl"]
"""
TOKENIZER = """stage = "tokenizer"
documents = "documents-1"
output = "tokenizer"
[tokenizer]
kind = "ByteLevelBPE"
vocabulary = 600
[sample]
bytes = 300_000
"""
TOKENIZE = """stage = "tokenize"
documents = "documents-1"
tokenizer = "tokenizer"
output = "tokens-{workers}"
workers = {workers}
held_out = 0.1
"""
PRETRAIN = """stage = "pretrain"
tokens = "tokens-1"
output = "model-{workers}"
workers = {workers}
[model]
layers = 2
channels = 32
heads = 4
kv_heads = 2
positions = 128
{model}
[batches]
sequence_length = 64
global_batch = 12
micro_batch = 2
[training]
steps = 50
checkpoints.every = 25
held_out.rows = 4
{training}
[training.optimizer]
kind = "{optimizer}"
lr = 2e-3
"""
CONVERSATIONS = """stage = "conversations"
rows = "{rows}"
tokenizer = "model-1"
output = "{rows}-shards"
workers = 1
sequence_length = 128
[[sources]]
paths = ["{rows}.jsonl"]
source = "questions"
"""
TUNE = """stage = "posttrain"
checkpoint = "model-1"
conversations = "{rows}-shards"
output = "{rows}-model-{workers}"
workers = {workers}
[objective]
kind = "{objective}"
[batches]
sequence_length = 128
global_batch = 6
micro_batch = 1
[training]
steps = 8
checkpoints.every = 8
held_out.rows = 0
[training.optimizer]
kind = "AdamW"
lr = 1e-3
"""
RL = """stage = "rl"
checkpoint = "conversations-model-1"
output = "rl-{workers}"
workers = {workers}
[prompts]
paths = ["problems.jsonl"]
template = "{{{{ question }}}}"
chat = true
[rollouts]
prompts = 4
samples = 4
micro_batch = 8
prompt_tokens = 64
maximum_tokens = 16
[[rewards]]
kind = "NumericAnswer"
column = "answer"
[objective]
kind = "GRPO"
[training]
steps = 4
checkpoints.every = 4
[training.optimizer]
kind = "AdamW"
lr = 1e-3
"""
EVALUATE = """stage = "evaluate"
checkpoint = "model-1"
tokens = "tokens-1"
output = "scores"
sequence_length = 64
tokens_per_source = 2_000
threads = 1
"""


@dataclass
class Chain:
    """Stages of one tree, run in a folder, and the hashes of what they made."""

    tree: Path
    folder: Path
    ray: Path | None = None  # folder with a release of Ray other than the installed one
    hashes: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str) -> str:
        """Run `trainrig` with `words` and return what it printed."""
        environment = {
            k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "VIRTUAL_ENV")
        }
        packages = [self.tree / "platform", *([self.ray] if self.ray else [])]
        environment |= {"PYTHONPATH": os.pathsep.join(map(str, packages)), "OMP_NUM_THREADS": "1"}
        environment["RAY_OVERRIDE_RESOURCES"] = RAY_RESOURCES
        ended = subprocess.run(
            [sys.executable, "-m", "trainrig", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise SystemExit(
                f"trainrig {' '.join(words)} ended with {ended.returncode}:\n{ended.stderr}"
            )
        return ended.stdout

    def run_stage(self, text: str, **changes: Any) -> Path:
        """Run the stage of a run file and return its folder."""
        text = text.format(**changes)
        stage = text.split('"')[1]
        folder = text.partition('output = "')[2].split('"')[0]
        run_file = self.folder / f"{folder}.toml"
        run_file.write_text(text, encoding="utf-8")
        self.run(stage, str(run_file))
        return self.folder / folder

    def record(self, name: str, *values: Any) -> None:
        """Keep the hash of `values` under `name`."""
        self.hashes[name] = hashlib.sha256(repr(values).encode()).hexdigest()[:16]

    def record_files(self, name: str, folder: Path) -> None:
        """Keep the hash of all data files of a stage's folder."""
        files = [
            path for path in sorted(folder.rglob("*")) if path.suffix in DATA and path.is_file()
        ]
        assert files, folder
        sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        self.record(name, [str(path.relative_to(folder)) for path in files], sums)

    def record_run(self, name: str, folder: Path) -> None:
        """Keep the hashes of a training run's logged figures and of its last weights."""
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        self.record(f"{name} figures", list(_iterate_figures(rows)))
        exported = folder.with_name(f"{folder.name}-exported")
        self.run("export", str(folder), str(exported))
        weights = [p.read_bytes() for p in sorted(exported.glob("*.safetensors"))]
        assert weights
        self.record(f"{name} weights", *(hashlib.sha256(w).hexdigest() for w in weights))


DATA = {".parquet", ".bin", ".npy", ".jsonl", ".idx", ".arrow"}


def _iterate_figures(rows: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for row in rows:
        for key, value in sorted(row.items()):
            if any(word in key for word in LOGGED) and "seconds" not in key:
                yield key, value


def write_inputs(folder: Path) -> None:
    """Write pages, conversations, pairs and problems, the same each time."""
    pages = [
        {"url": f"https://example.org/{name}", "text": text}
        for name, text in _iterate_documentation()
    ]
    pages += [{**page, "url": page["url"] + "?copy"} for page in pages[:12]]
    (folder / "pages").mkdir()
    for part in range(4):
        _write_rows(folder / "pages" / f"{part}.jsonl", pages[part::4])
    draw = random.Random(7)
    problems = []
    for _ in range(48):
        left = draw.randint(0, 9)
        right = draw.randint(0, 9)
        problems.append({"question": f"What is {left} + {right}?", "answer": str(left + right)})
    _write_rows(folder / "problems.jsonl", problems)
    chats = [
        [{"role": "user", "content": p["question"]}, {"role": "assistant", "content": p["answer"]}]
        for p in problems
    ]
    _write_rows(folder / "conversations.jsonl", [{"messages": chat} for chat in chats])
    wrong = [[chat[0], {"role": "assistant", "content": "I do not know."}] for chat in chats]
    pairs = [{"chosen": a, "rejected": b} for a, b in zip(chats, wrong, strict=True)]
    _write_rows(folder / "pairs.jsonl", pairs)


def _iterate_documentation() -> Iterator[tuple[str, str]]:
    """Yield the names and the long docstrings of the standard library's modules."""
    library = Path(os.__file__).parent
    for path in sorted([*library.glob("*.py"), *library.glob("*/*.py")]):
        if "test" in path.parts or "site-packages" in path.parts:
            continue
        with contextlib.suppress(SyntaxError, UnicodeDecodeError):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            nodes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            texts = [ast.get_docstring(node) or "" for node in [tree, *nodes]]
            text = "\n\n".join(text for text in texts if len(text) > 120)
            if len(text) > 800:
                yield str(path.relative_to(library)), text


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def hash_tree(tree: Path) -> dict[str, str]:
    """Run the chain with the package of a checkout and return its hashes by name."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        chain = Chain(tree, Path(name))
        write_inputs(chain.folder)
        for workers in (0, 1, 2):
            chain.record_files(f"documents, {workers}", chain.run_stage(CURATE, workers=workers))
        chain.run_stage(TOKENIZER)
        chain.record("tokenizer", (chain.folder / "tokenizer" / "tokenizer.json").read_bytes())
        for workers in (0, 1, 2):
            chain.record_files(f"tokens, {workers}", chain.run_stage(TOKENIZE, workers=workers))
        hash_training(chain)
        hash_reading(chain)
        return chain.hashes


def hash_training(chain: Chain) -> None:
    """Hash pretraining, tuning and reinforcement learning at several numbers of workers."""
    plain = {"model": "", "training": "", "optimizer": "AdamW"}
    for workers in WORKERS:
        chain.record_run(
            f"pretrain, {workers}", chain.run_stage(PRETRAIN, workers=workers, **plain)
        )
    experts = {
        "model": 'feedforward = { kind = "MixtureOfExperts", experts = 4, active = 2 }',
        "training": 'schedule = { kind = "Cosine" }',
        "optimizer": "Muon",
    }
    text = PRETRAIN.replace("model-{workers}", "experts-{workers}")
    chain.record_run("experts, 2", chain.run_stage(text, workers=2, **experts))
    for rows, objective in (("conversations", "SFT"), ("pairs", "DPO")):
        chain.record_files(f"{rows} shards", chain.run_stage(CONVERSATIONS, rows=rows))
        for workers in WORKERS[:2]:
            folder = chain.run_stage(TUNE, rows=rows, objective=objective, workers=workers)
            chain.record_run(f"{objective}, {workers}", folder)
    for workers in WORKERS[:2]:
        chain.record_run(f"GRPO, {workers}", chain.run_stage(RL, workers=workers))


def hash_reading(chain: Chain) -> None:
    """Hash scores, a generation, and what the commands that only compute print."""
    chain.run_stage(EVALUATE)
    scores = json.loads((chain.folder / "scores" / "scorecard.json").read_text(encoding="utf-8"))
    chain.record("scores", {key: scores[key] for key in sorted(scores) if "seconds" not in key})
    for words in (
        ("generate", "model-1", "--prompt", "The", "--tokens", "16", "--temperature", "0"),
        ("plan", "hoffmann", "--flops", "1e21"),
        ("predict", "hoffmann", "--params", "1.3B", "--tokens", "26B"),
        ("schema", "pretrain"),
        ("check", "model-1.toml"),
        ("check", "documents-1.toml"),
    ):
        printed = chain.run(*words, "--json") if words[0] != "schema" else chain.run(*words)
        if words[0] == "schema":  # descriptions are prose
            printed = json.dumps(_drop_descriptions(json.loads(printed)))
        chain.record(f"trainrig {' '.join(words)}", printed)


def _drop_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            k: _drop_descriptions(v) for k, v in value.items() if k not in ("description", "title")
        }
    return [_drop_descriptions(v) for v in value] if isinstance(value, list) else value


def check_workers(hashes: dict[str, str]) -> list[str]:
    """Return the names of results that depend on the number of workers."""
    by_kind: dict[str, set[str]] = {}
    for name, value in hashes.items():
        kind, _, rest = name.partition(", ")
        if rest:
            by_kind.setdefault(f"{kind} {rest.partition(' ')[2]}".strip(), set()).add(value)
    return sorted(kind for kind, values in by_kind.items() if len(values) > 1)


def main() -> int:
    """Hash the working tree, and compare it with a commit where one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the hashes to this JSON file")
    parser.add_argument("--against", help="a commit whose results must be equal")
    given = parser.parse_args()
    hashes = hash_tree(ROOT)
    if given.out:
        given.out.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    problems = [f"{kind}: differs by the number of workers" for kind in check_workers(hashes)]
    if given.against:
        with tempfile.TemporaryDirectory(prefix="golden-tree-") as folder:
            git = ["git", "-C", str(ROOT), "worktree"]
            subprocess.run([*git, "add", "-q", "--detach", folder, given.against], check=True)
            try:
                before = hash_tree(Path(folder))
            finally:
                subprocess.run([*git, "remove", "--force", folder], check=True)
        differing = [
            name for name in before.keys() | hashes if before.get(name) != hashes.get(name)
        ]
        problems += [f"{name}: differs from {given.against}" for name in sorted(differing)]
    print(json.dumps(hashes, indent=1))
    print("\n".join(problems) or f"{len(hashes)} results are equal", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
