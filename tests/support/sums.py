"""A small task for soak tests: the answer to `aa+bb=` is three digits, the last first.

Of the 10,000 sums, 1,000 are held out. Fixtures are imported by the conftest.py of each folder that
uses them.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters, initialise
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.stages.prompted_run_files import AnswerSampling
from trainrig.posttrain.stages.sample_stage import sample_answers
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.reinforcement_stage import reinforce
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import write_model

LENGTH = 40
TUNED = 1000  # most steps of tuning that `SumsBench.tune_start` takes
HALF = 0.45
Row = dict[str, str]


def sums() -> tuple[list[Row], list[Row]]:
    """Return (training rows, held-out rows)."""
    rows = [
        {"prompt": f"{a:02d}+{b:02d}=", "completion": f"{a + b:03d}"[::-1]}
        for a in range(100)
        for b in range(100)
    ]
    random.Random(0).shuffle(rows)
    return rows[1000:], rows[:1000]


class SumsBench:
    """Runs in folders below one, and actions on them."""

    def __init__(self, folder: Path, tokens: str) -> None:
        """Take the folder and `tokens`, a folder with a tokenizer of bytes."""
        self.folder = folder
        self.tokens = tokens
        self.train_rows, held_out = sums()
        self.train = self.write("train", self.train_rows)
        self.held_out = self.write("held_out", held_out)

    def at(self, name: str) -> str:
        """Return the path of the folder `name`."""
        return str(self.folder / name)

    def write(self, name: str, rows: Iterable[Row]) -> str:
        """Write a file of `rows`, and return its path."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def model(self, name: str, channels: int, seed: int) -> int:
        """Write an untrained model, and return its number of parameters."""
        config = DecoderConfig(
            layers=2, channels=channels, heads=4, positions=2 * LENGTH, vocabulary=264
        )
        model = Decoder(config)
        initialise(model, seed=seed)
        files = TokenizerFiles.read(self.tokens)
        write_model(self.at(name), config, files.tokenizer, model.state_dict())
        return count_parameters(config).total

    def encode(self, name: str, paths: Iterable[str], rows: str = "conversations") -> None:
        """Encode the files `paths` for training.

        Rows named `sums` also get held-out rows.
        """
        sources = [{"source": "sums", "paths": tuple(paths), "split": "train"}]
        if name == "sums":
            sources.append({"source": "sums", "paths": (self.held_out,), "split": "held_out"})
        given = {"sources": tuple(sources), "tokenizer": self.tokens, "output": self.at(name)}
        given |= {"sequence_length": LENGTH, "held_out": 0, "workers": 0, "rows": rows}
        encode_conversations(ConversationEncoding.model_validate(given))

    def tune(
        self,
        name: str,
        start: str,
        steps: int,
        rows: str = "sums",
        seed: int = 0,
        lr: float = 2e-3,
        keep_every: int | None = None,
        **changes: Any,
    ) -> None:
        """Tune `start` on `rows`, and keep a checkpoint every `keep_every` steps."""
        given = {
            "checkpoint": self.at(start),
            "conversations": self.at(rows),
            "output": self.at(name),
            "batches": {
                "sequence_length": LENGTH,
                "global_batch": 128,
                "micro_batch": 128,
                "packing": "none",
                "seed": seed,
            },
            "comparison": {"prompts": 0},
            "training": {
                "steps": steps,
                "optimizer": {"kind": "AdamW", "lr": lr, "weight_decay": 0.0},
                "schedule": {"kind": "Constant", "warmup": 20},
                "spikes": None,
                "held_out": {"rows": 0},
                "checkpoints": {"every": keep_every or steps, "keep": 99},
            },
        }
        posttrain(FineTuning.model_validate(given | changes))

    def reinforce(
        self,
        name: str,
        start: str,
        steps: int,
        seed: int,
        lr: float = 3e-4,
        warmup: int = 0,
        **changes: Any,
    ) -> str:
        """Train the model `start` by rewards of sampled answers, and return the run folder.

        Each step has 32 prompts of 8 answers.
        """
        given = {
            "checkpoint": self.at(start),
            "output": self.at(name),
            "prompts": {"paths": (self.train,), "chat": True},
            "rollouts": {
                "prompts": 32,
                "samples": 8,
                "micro_batch": 256,
                "prompt_tokens": 16,
                "maximum_tokens": 6,
                "seed": seed,
                **changes.pop("rollouts", {}),
            },
            "rewards": (EXACT,),
            "training": {
                "steps": steps,
                "seed": seed,
                "optimizer": {"kind": "AdamW", "lr": lr, "weight_decay": 0.0},
                "schedule": {"kind": "Constant", "warmup": warmup},
                "checkpoints": {"every": steps},
            },
        }
        reinforce(ReinforcementLearning.model_validate(given | changes))
        return self.at(name)

    def tune_start(self, seed: int) -> tuple[str, float]:
        """Return the name and the accuracy of a model that gets about half of the sums right.

        It is the first checkpoint of tuning that gets at least `HALF` of the held-out sums right.
        """
        fresh = f"fresh-{seed}"
        tuned = f"tuned-{seed}"
        self.model(fresh, 128, 10 + seed)
        self.tune(tuned, fresh, TUNED, seed=seed, keep_every=20, lr=1e-3)
        share = 0.0
        for step in range(200, TUNED + 1, 20):
            name = f"{tuned}/checkpoints/step_{step:08d}"
            share, _ = self.exact(name)
            print(json.dumps({"seed": seed, "step": step, "exact": share}), flush=True)
            if share >= HALF:
                return name, share
        raise AssertionError(f"seed {seed}: {share} right after {TUNED} steps")

    def sample(self, name: str, model: str, prompts: str, **changes: Any) -> Any:
        """Sample answers to `prompts`, and return their counts."""
        given = {
            "checkpoint": self.at(model),
            "prompts": {"paths": (prompts,), "chat": True},
            "prompt_tokens": 16,
            "maximum_tokens": 6,
            "rewards": (EXACT,),
            "output": self.at(name),
            "workers": 0,
            "batch": 128,
        }
        return sample_answers(AnswerSampling.model_validate(given | changes)).counts

    def exact(self, model: str) -> tuple[float, list[str]]:
        """Return the share of held-out sums that greedy answers get right, and these answers."""
        name = f"exact of {model.replace('/', ' ')}"
        counts = self.sample(name, model, self.held_out, samples=1, temperature=0.0)
        lines = b"".join(p.read_bytes() for p in sorted((self.folder / name / "samples").iterdir()))
        return counts["reward"], [json.loads(line)["completion"] for line in lines.splitlines()]


EXACT = {"kind": "ExactAnswer", "column": "completion"}
