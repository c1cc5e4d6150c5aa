"""Fine-tuning compared with TRL: the same 9.4M Llama, rows, sizes, float32, one thread.

The two sides alternate. Memory is the peak of processes that do nothing else, as the system counted
it, less the memory after all imports.

TRL runs with its defaults, except for settings that would slow it down here (recomputation,
bfloat16 on a CPU): rows are shuffled and padded to the longest of a batch, the reference runs in
the loop. Figures are wall times, so they need an idle machine.
"""

import functools
import gzip
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.huggingface.model_folders import export_checkpoint
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.tuning import fine_tuning
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.checkpoint import write_model
from trainrig.train.run import metrics

SCRIPT = Path(__file__).parent / "tuning_memory.py"
pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

LLAMA = {
    "vocabulary": 4096, "channels": 256, "layers": 8, "heads": 8, "feedforward_channels": 1024,
    "positions": 512,
}  # fmt: skip
LENGTH = 512
ROUNDS = 3
WARM = 2
ANSWERS = 16  # conversations in a TRL batch; trainrig packs about as many into as many tokens
PAIRS = 8
LORA = {"rank": 8, "alpha": 16}
TRL_LORA = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}


class Started:
    """A fresh model as a checkpoint and as a Hugging Face folder, and rows to tune it on."""

    def __init__(self, at, rows, texts):
        """Write the models and the rows.

        `texts` train the tokenizer.
        """
        self.at = at
        self.rows = rows
        kind = "pairs" if "chosen" in rows[0] else "conversations"
        text = train_tokenizer(ByteLevelBPE(vocabulary=4096), texts).decode()
        config = DecoderConfig(**LLAMA)
        model = Decoder(config)
        initialise(model, seed=1)
        write_model(str(at / "fresh"), config, text, model.state_dict())
        export_checkpoint(str(at / "fresh"), str(at / "hub"), HubFolder())
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        (at / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        encode_conversations(
            ConversationEncoding(
                rows=kind,
                sources=({"paths": (str(at / "rows.jsonl"),), "source": "rows"},),
                tokenizer=str(at / "fresh"),
                output=str(at / "encoded"),
                workers=0,
                held_out=0,
                sequence_length=LENGTH,
            )
        )

    def run_file(self, name, objective, steps, batch, **changes):
        """Return the settings of a trainrig run."""
        return {
            "checkpoint": str(self.at / "fresh"),
            "conversations": str(self.at / "encoded"),
            "output": str(self.at / name),
            "batches": {"sequence_length": LENGTH, "global_batch": batch, "micro_batch": batch},
            "objective": objective,
            "training": {
                "steps": steps,
                "deterministic": False,
                "optimizer": {"kind": "AdamW", "lr": 1e-4, "weight_decay": 0.0},
                "schedule": {"kind": "Constant", "warmup": 0},
                "held_out": {"rows": 0},
                "checkpoints": {"every": steps},
            },
        } | changes

    def tune(self, name, objective, steps, batch, **changes):
        """Run trainrig and return the lines of its metrics."""
        run = self.run_file(name, objective, steps, batch, **changes)
        fine_tuning.posttrain(FineTuning.model_validate(run))
        return metrics.read_series(str(self.at / name))

    def trl_arguments(self, steps, batch):
        """Return TRL's configuration: its defaults, without recomputation and bfloat16."""
        return {
            "output_dir": str(self.at / "trl"), "per_device_train_batch_size": batch,
            "max_steps": steps, "learning_rate": 1e-4, "lr_scheduler_type": "constant",
            "gradient_checkpointing": False, "bf16": False, "report_to": "none", "use_cpu": True,
            "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "max_length": LENGTH,
            "weight_decay": 0.0,
        }  # fmt: skip


def compute_rate(times, amounts):
    """Return amounts per second from the end of step WARM on."""
    return sum(amounts[WARM:]) / (times[-1] - times[WARM - 1])


def run_trl(started, kind, steps, batch, lora=False):
    """Return (rate, first loss) of a TRL run: trained targets a second for SFT, steps for DPO."""
    import transformers
    import trl
    from datasets import Dataset

    ends = []
    targets = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *arguments, **others):
            ends.append(time.perf_counter())

    base = trl.SFTTrainer if kind == "SFT" else trl.DPOTrainer

    class Counting(base):  # type: ignore[valid-type]
        def compute_loss(self, model, inputs, *arguments, **others):
            if "labels" in inputs:
                targets.append(int((inputs["labels"] != -100).sum()))
            return super().compute_loss(model, inputs, *arguments, **others)

    settings = started.trl_arguments(steps, batch)
    tokenizer = transformers.AutoTokenizer.from_pretrained(started.at / "hub")
    model = transformers.AutoModelForCausalLM.from_pretrained(started.at / "hub")
    peft = None
    if lora:
        from peft import LoraConfig

        peft = LoraConfig(**TRL_LORA)
    config = (trl.SFTConfig if kind == "SFT" else trl.DPOConfig)(**settings)
    trainer = Counting(
        model=model, args=config, train_dataset=Dataset.from_list(started.rows),
        processing_class=tokenizer, callbacks=[Clock()], peft_config=peft,
    )  # fmt: skip
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return compute_rate(ends, targets if kind == "SFT" else [1] * steps), losses[0]


def print_report(name, pairs, write_result, **found):
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    found |= {
        "benchmark": name,
        "ours_per_second": [round(ours, 3) for ours, _ in pairs],
        "trl_per_second": [round(theirs, 3) for _, theirs in pairs],
        "ratio": round(statistics.median(ratios), 3),
        "ratio_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
    }
    print("\n" + json.dumps(found))
    write_result(f"{name}-beside-trl.json", found)
    return found["ratio"]


def read_problems(test_data):
    """Return conversations of GSM8K, and the texts that a tokenizer is trained on."""
    lines = (test_data / "sets/gsm8k_train.jsonl").read_text().splitlines()[:1_000]
    rows = [
        {
            "prompt": [{"role": "user", "content": row["question"]}],
            "completion": [{"role": "assistant", "content": row["answer"]}],
        }
        for row in map(json.loads, lines)
    ]
    return rows, lines


def read_preferences(test_data):
    """Return HH preference pairs with a common prompt, and texts to train a tokenizer on."""
    with gzip.open(test_data / "sets/hh_harmless_base_test.jsonl.gz", "rt") as file:
        dialogues = [json.loads(line) for line, _ in zip(file, range(1_000), strict=False)]
    rows = []
    for dialogue in dialogues:
        prompt, _, chosen = dialogue["chosen"].rpartition("\n\nAssistant: ")
        begin, _, rejected = dialogue["rejected"].rpartition("\n\nAssistant: ")
        if begin == prompt and chosen != rejected and len(prompt) + len(chosen) < 900:
            rows.append({"prompt": prompt + "\n\nAssistant: ", "chosen": chosen,
                         "rejected": rejected})  # fmt: skip
    return rows[:96], [dialogue["chosen"] for dialogue in dialogues]


@pytest.fixture
def alone(monkeypatch, without_ray):
    """Use one thread and no hub."""
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_sft_on_real_rows(lora, alone, test_data, tmp_path, write_result):
    started = Started(tmp_path, *read_problems(test_data))
    pairs = []
    steps = 12
    changes = {"lora": LORA} if lora else {}
    for nth in range(ROUNDS):
        series = started.tune(f"ours-{nth}", {"kind": "SFT"}, steps, 6, **changes)
        seen = [line["train/tokens"] for line in series]
        amounts = [b - a for a, b in zip([0, *seen], seen, strict=False)]
        ours = compute_rate([line["time"] for line in series], amounts)
        theirs, _ = run_trl(started, "SFT", steps, ANSWERS, lora)
        pairs.append((ours, theirs))
    facts = {"unit": "trained targets", "parameters": started.parameters}
    assert print_report("lora-sft" if lora else "sft", pairs, write_result, **facts) > 1


def test_dpo_on_real_pairs_with_the_references_counted(
    alone, test_data, tmp_path, write_result, monkeypatch
):
    rows, texts = read_preferences(test_data)
    spent = []
    compute = fine_tuning.compute_references

    @functools.wraps(compute)
    def timed(*arguments):
        began = time.perf_counter()
        found = compute(*arguments)
        spent.append(time.perf_counter() - began)
        return found

    monkeypatch.setattr(fine_tuning, "compute_references", timed)
    # Each pair occurs once.
    pairs = []
    steps = len(rows) // PAIRS
    for nth in range(ROUNDS):
        at = tmp_path / str(nth)  # a new folder, so that references are computed again
        at.mkdir()
        started = Started(at, rows, texts)
        series = started.tune("ours", {"kind": "DPO"}, steps, PAIRS)
        ends = [line["time"] for line in series]
        loop = (ends[-1] - ends[WARM - 1]) / (steps - WARM)  # s a step
        ours = 1 / (loop + spent[-1] / steps)
        theirs, _ = run_trl(started, "DPO", steps, PAIRS)
        pairs.append((ours, theirs))
    facts = {"unit": "steps", "parameters": started.parameters, "rows": len(rows)}
    assert print_report("dpo", pairs, write_result, **facts) > 1


def measure_peak(side, settings, at):
    """Return the MiB before and at the peak of a process of `side`, see tuning_memory.py."""
    file = at / f"{side}.json"
    file.write_text(json.dumps(settings))
    command = [sys.executable, str(SCRIPT), side, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("kind", "lora", "batch", "trl_batch"),
    [("SFT", False, 6, ANSWERS), ("SFT", True, 6, ANSWERS), ("DPO", False, PAIRS, PAIRS)],
    ids=["sft", "lora-sft", "dpo"],
)
def test_peak_memory_is_no_higher(
    kind, lora, batch, trl_batch, alone, test_data, tmp_path, write_result
):
    rows, texts = (read_preferences if kind == "DPO" else read_problems)(test_data)
    steps = 8
    rounds = []
    for nth in range(ROUNDS):
        at = tmp_path / str(nth)  # a new folder, so that references are computed again
        at.mkdir()
        started = Started(at, rows, texts)
        changes = {"lora": LORA} if lora else {}
        ours = started.run_file("ours", {"kind": kind}, steps, batch, **changes)
        theirs = {
            "rows": rows, "hub": str(at / "hub"), "kind": kind,
            "lora": TRL_LORA if lora else None,
            "arguments": started.trl_arguments(steps, trl_batch),
        }  # fmt: skip
        rounds.append(
            {"ours": measure_peak("ours", ours, at), "trl": measure_peak("trl", theirs, at)}
        )
    above = [
        {side: bytes_of["peak"] - bytes_of["before"] for side, bytes_of in r.items()}
        for r in rounds
    ]
    name = ("lora-" if lora else "") + kind.lower()
    ratios = sorted(peaks["ours"] / peaks["trl"] for peaks in above)
    found = {
        "benchmark": f"peak memory of {name} above what is held once all is imported",
        "unit": "MiB", "parameters": started.parameters, "rounds": rounds,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
    }  # fmt: skip
    print("\n" + json.dumps(found))
    write_result(f"{name}-memory-beside-trl.json", found)
    assert found["ratio"] <= 1
