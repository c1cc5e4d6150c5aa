"""Tiny tokens, run files and tasks for the tests of training and of later stages."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.run_file.run_files import Pretraining

ENTRIES = 320  # entries of the tiny tokenizer: 256 bytes, 7 special tokens, 57 merges
WORDS = {
    "books": ["the", "sea", "is", "a", "grey", "mirror", "and", "nobody", "sleeps", "é"],
    "web": ["buy", "two", "cats", "now", "2024", "free", "猫", "shipping!", "click", "here"],
}


def write_curated(folder: str) -> str:
    """Write a curated folder of synthetic text in two sources of different vocabularies."""
    made_up = CurationSource(name="made-up", paths=("made-up.warc",))
    stage = manifest.claim(folder, Curation(output=folder, workers=0, sources=(made_up,)), {})
    files = {}
    for source, words in WORDS.items():
        dice = random.Random(source)
        rows = []
        for number in range(40):
            text = " ".join(dice.choice(words) for _ in range(dice.randint(20, 90)))
            url = f"https://{source}.example/{number}"
            identity = hashlib.md5(url.encode()).hexdigest()
            row = {"id": identity, "url": url, "source": source, "language": "", "text": text}
            rows.append(row)
        name = f"kept/{source}.parquet"
        Path(stage.build_path("kept")).mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), stage.build_path(name))
        files[name] = manifest.compute_file_sum(stage.build_path(name))
    stage.finish({"kept": 80}, files)
    return folder


def tokenized(
    base: Path, held_out: float = 0.2, entries: int = ENTRIES, **tokenizer_settings: Any
) -> str:
    """Tokenize into a folder below `base`, and return it."""
    documents = write_curated(str(base / "curated"))
    tokenizer = str(base / "tokenizer")
    output = str(base / "tokens")
    settings = ByteLevelBPE(vocabulary=entries, **tokenizer_settings)
    make_tokenizer(TokenizerTraining(documents=documents, output=tokenizer, tokenizer=settings))
    tokenize(
        Tokenization(
            documents=documents, tokenizer=tokenizer, output=output, workers=0, held_out=held_out
        )
    )
    return output


def make_run(tokens: str, output: Path | str, workers: int = 1, **changes: Any) -> Pretraining:
    """Return the usual run file of pretraining with changes."""
    parts: dict[str, dict[str, Any]] = {
        "model": {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48},
        "batches": {"sequence_length": 32, "global_batch": 8, "micro_batch": 2},
        # Steep enough that a wrong gradient shows, clipped at some steps and not at others.
        "training": {
            "steps": 12,
            "optimizer": {"kind": "AdamW", "lr": 0.01},
            "schedule": {"kind": "Cosine", "warmup": 2},
            "clip_norm": 0.8,
        },
    }
    merged = {name: part | changes.get(name, {}) for name, part in parts.items()}
    others = {name: part for name, part in changes.items() if name not in parts}
    settings: dict[str, Any] = {"tokens": tokens, "output": str(output), "workers": workers}
    return Pretraining(**settings | merged | others)


def write_task(folder: Path) -> str:
    """Write a task of twelve choices between words in the tokens and other words."""
    dice = random.Random(0)
    rows = []
    for number in range(12):
        said = dice.choice(WORDS["books"])
        unsaid = dice.choice(["zyx", "quark", "Ωmega"])
        query = " ".join(dice.choices(WORDS["books"], k=4))
        rows.append({"query": query, "choices": [said, unsaid], "gold": number % 2})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    (folder / "words.toml").write_text(
        f'name = "words"\nrows = "{folder}/rows.jsonl"\nprompt = "{{{{ query }}}}"\n'
        '[scoring]\nkind = "MultipleChoice"\nchoices = "choices"\ngold = "gold"\n'
    )
    return str(folder / "words.toml")
