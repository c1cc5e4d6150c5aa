"""What small models learn: a student of sums from a teacher, a model of one rule from revisions.

Figures are in `results`.
"""

import json
import random
from pathlib import Path

import pytest

from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters, initialise
from trainrig.posttrain.constitutional.run_file import ConstitutionalChain
from trainrig.posttrain.constitutional.stage import revise_answers
from trainrig.posttrain.conversation_run import ConversationEncoding
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.distillation.run_file import TeacherScoring
from trainrig.posttrain.distillation.stage import store_teacher
from trainrig.posttrain.run_file import FineTuning
from trainrig.posttrain.sampling.run_file import AnswerSampling
from trainrig.posttrain.sampling.stage import sample_answers
from trainrig.posttrain.sft import posttrain
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import write_model

pytestmark = pytest.mark.soak
LENGTH = 40


def sums():
    """(rows to train on, rows held out): answers are the digits of the sum, the last first."""
    rows = [
        {"prompt": f"{a:02d}+{b:02d}=", "completion": f"{a + b:03d}"[::-1]}
        for a in range(100)
        for b in range(100)
    ]
    random.Random(0).shuffle(rows)
    return rows[1000:], rows[:1000]


class Bench:
    """Folders below one, and what is done in them."""

    def __init__(self, folder: Path, tokens: str) -> None:
        self.folder, self.tokens = folder, tokens
        train, held_out = sums()
        self.train = self.write("train", train)
        self.held_out = self.write("held_out", held_out)

    def at(self, name):
        return str(self.folder / name)

    def write(self, name, rows):
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def model(self, name, channels, seed):
        config = DecoderConfig(
            layers=2, channels=channels, heads=4, positions=2 * LENGTH, vocabulary=264
        )
        model = Decoder(config)
        initialise(model, seed=seed)
        files = TokenizerFiles.read(self.tokens)
        write_model(self.at(name), config, files.tokenizer, model.state_dict())
        return count_parameters(config).total

    def encode(self, name, paths):
        sources = [{"source": "sums", "paths": tuple(paths), "split": "train"}]
        if name == "sums":
            sources.append({"source": "sums", "paths": (self.held_out,), "split": "held_out"})
        given = {"sources": tuple(sources), "tokenizer": self.tokens, "output": self.at(name)}
        given |= {"sequence_length": LENGTH, "held_out": 0, "workers": 0}
        encode_conversations(ConversationEncoding.model_validate(given))

    def tune(self, name, start, steps, rows="sums", seed=0, lr=2e-3, **changes):
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
            "training": {
                "steps": steps,
                "optimizer": {"kind": "AdamW", "lr": lr, "weight_decay": 0.0},
                "schedule": {"kind": "Constant", "warmup": 20},
                "spikes": None,
                "held_out": {"rows": 0},
                "checkpoints": {"every": steps},
            },
        }
        posttrain(FineTuning.model_validate(given | changes))

    def sample(self, name, model, prompts, **changes):
        given = {
            "checkpoint": self.at(model),
            "prompts": {"paths": (prompts,), "chat": True},
            "prompt_tokens": 16,
            "maximum_tokens": 6,
            "rewards": ({"kind": "ExactAnswer", "column": "completion"},),
            "output": self.at(name),
            "workers": 0,
            "batch": 128,
        }
        return sample_answers(AnswerSampling.model_validate(given | changes)).counts

    def exact(self, model):
        """The share of held-out sums that the likeliest answer gets right, and these answers."""
        name = f"{model}-exact"
        counts = self.sample(name, model, self.held_out, samples=1, temperature=0.0)
        lines = b"".join(p.read_bytes() for p in sorted((self.folder / name / "samples").iterdir()))
        return counts["reward"], [json.loads(line)["completion"] for line in lines.splitlines()]


@pytest.fixture
def bench(make_tokens, tmp_path, without_ray):
    found = Bench(tmp_path, make_tokens(tmp_path / "made", entries=264))
    found.encode("sums", [found.train])
    return found


@pytest.mark.timeout(3600)
def test_a_student_of_a_quarter_of_the_size_agrees_with_its_teacher(bench, write_result):
    figures = {}
    sizes = {"teacher": (128, 1), "student": (64, 2)}
    for name, (channels, seed) in sizes.items():
        figures[f"{name}_parameters"] = bench.model(f"fresh-{name}", channels, seed)
    bench.tune("teacher", "fresh-teacher", 500)
    figures["teacher_exact"], taught = bench.exact("teacher")
    scoring = {
        "checkpoint": bench.at("teacher"),
        "conversations": bench.at("sums"),
        "entries": 16,
        "temperature": 2.0,
        "output": bench.at("expected"),
        "workers": 0,
        "batch": 128,
    }
    figures["covered"] = store_teacher(TeacherScoring.model_validate(scoring)).counts["covered"]
    distillation = {"kind": "Distillation", "temperature": 2.0}
    ways = {
        "distilled": {"teacher": bench.at("expected"), "objective": distillation},
        "plain": {},
    }
    for name, changes in ways.items():
        bench.tune(name, "fresh-student", 600, **changes)
        figures[f"{name}_exact"], said = bench.exact(name)
        same = sum(a == b for a, b in zip(said, taught, strict=True))
        figures[f"{name}_agreement"] = same / len(taught)
    write_result("distillation.json", figures)
    # As measured on one seed: .61, .742 and .015, with room for other machines.
    assert figures["teacher_exact"] >= 0.4
    assert figures["distilled_agreement"] >= 0.5
    assert figures["distilled_agreement"] >= figures["plain_agreement"] + 0.3


@pytest.mark.timeout(3600)
def test_rules_as_critic_and_tuning_on_revisions_raise_the_share_that_passes(bench, write_result):
    """A model that says yes or no, with a full stop or without, is to end with one."""
    dice = random.Random(1)

    def rows(count, first):
        return [{"prompt": f"is {first + n}?"} for n in range(count)]

    said = [
        row | {"completion": dice.choice(["yes", "no"]) + dice.choice(["", "."])}
        for row in rows(600, 0)
    ]
    # What it is asked for a revision looks otherwise: it has seen answers to that too, half of
    # which end as they should.
    said += [row | {"prompt": f"{row['prompt']} no stop"} for row in said[:300]]
    bench.encode("mixed", [bench.write("mixed", said)])
    bench.model("fresh", 64, 1)
    bench.tune("start", "fresh", 200, rows="mixed")
    chain = {
        "checkpoint": bench.at("start"),
        "principles": bench.at("principles.txt"),
        "critic": "rules",
        "rules": ({"pattern": "[.]$", "says": "no stop"},),
        "critique": "{{ answer }}",
        "revision": "{{ prompt }} {{ critique }}",
        "rounds": 2,
        "prompts": {"paths": (bench.write("asked", rows(500, 1000)),), "chat": True},
        "prompt_tokens": 20,
        "maximum_tokens": 8,
        "output": bench.at("chains"),
        "workers": 0,
        "batch": 100,
    }
    Path(bench.at("principles.txt")).write_text("End with a full stop.\n")
    counts = revise_answers(ConstitutionalChain.model_validate(chain)).counts
    figures = {name: counts[f"pass_{name}"] / counts["prompts"] for name in ("before", "after")}
    bench.encode("revised", [f"{bench.at('chains')}/revisions/"])
    bench.tune("tuned", "start", 60, rows="revised", lr=1e-3)
    again = chain | {"checkpoint": bench.at("tuned"), "output": bench.at("again"), "seed": 1}
    counts = revise_answers(ConstitutionalChain.model_validate(again)).counts
    figures["tuned"] = counts["pass_before"] / counts["prompts"]
    write_result("revisions.json", figures)
    assert figures["after"] >= figures["before"] + 0.2
    assert figures["tuned"] >= figures["before"] + 0.3
