"""GRPO learns sums as well as TRL's, from one exported model by the same settings.

Both start from the same weights and take the same number of steps at the same rate, with groups of
the same size, the same divergence penalty and the same reward. trainrig's sampler judges both ends
on the held-out sums, by the likeliest answer. Only the random numbers differ: the order of prompts
and the samples. TRL's defaults that would differ are set as trainrig's, see `SETTINGS`.
"""

import importlib.metadata
import json
import statistics

import pytest
import torch

from trainrig.models.huggingface import HubFolder
from trainrig.optim import AdamW, Constant
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.train.run import metrics

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
SEEDS = (0, 1, 2, 3, 4)
STEPS = 60
RATE = 3e-4
# Adam's first steps are as long as the rate for each weight, whatever the gradient. Without a
# warm-up, the first update moves either library's policy by .45 nats per token, and the share of
# right answers falls from .26 to .17 (one seed of each, 2026-11-30).
WARMUP = 10
DIVERGENCE = 0.04  # weight of the divergence: DeepSeekMath's (arXiv:2402.03300, section 4.2)
# Student's t of 95% with 4 degrees of freedom.
T_FIVE_SEEDS = 2.776
# TRL's defaults differ in the loss ("dapo": all tokens count equally), and in bfloat16 and
# recomputation on a CPU.
SETTINGS = {
    "loss_type": "grpo", "max_grad_norm": 1.0, "beta": DIVERGENCE, "temperature": 1.0,
    "max_completion_length": 6, "num_generations": 8, "per_device_train_batch_size": 32 * 8,
    "gradient_checkpointing": False, "bf16": False,
}  # fmt: skip
PACKAGES = ("trl", "transformers", "torch", "accelerate", "datasets")
# Logged by both: trainrig's name, and TRL's.
LOGGED = {
    "reward": ("reward", "reward"),
    "entropy": ("entropy", "entropy"),
    "divergence": ("reference_divergence", "kl"),
    "tokens": ("completion_tokens", "completions/mean_length"),
}


def summarise(lines, column):
    """Return the means of the logged figures over the first and the last tenth of `lines`."""
    tenth = max(1, len(lines) // 10)
    return {
        f"{figure}_{when}": round(statistics.mean(line[names[column]] for line in part), 4)
        for figure, names in LOGGED.items()
        for when, part in (("first", lines[:tenth]), ("last", lines[-tenth:]))
    }


def train_by_trainrig(bench, start, seed):
    """Train `start`, and return the share of right answers and the logged figures."""
    objective = {"kind": "GRPO", "reference": {"weight": DIVERGENCE, "estimator": "k3"}}
    folder = bench.reinforce(
        f"ours-{seed}", start, STEPS, seed, lr=RATE, warmup=WARMUP, objective=objective
    )
    prefix = "train/diagnostics/"
    lines = [
        {name.removeprefix(prefix): line[name] for name in line if name.startswith(prefix)}
        for line in metrics.read_series(folder)
    ]
    assert len(lines) == STEPS
    return {"exact": bench.exact(f"ours-{seed}")[0], **summarise(lines, 0)}


def train_by_trl(bench, hub, seed):
    """Train the exported model `hub` by TRL, and return the same figures."""
    import transformers
    import trl
    from datasets import Dataset

    def exact(completions, answer, **others):
        said = (completion[0]["content"] for completion in completions)
        return [float(a.strip() == b) for a, b in zip(said, answer, strict=True)]

    at = bench.at(f"trl-{seed}")
    config = trl.GRPOConfig(
        output_dir=at, max_steps=STEPS, seed=seed, report_to="none", use_cpu=True,
        logging_steps=1, save_strategy="no", disable_tqdm=True, **SETTINGS,
    )  # fmt: skip
    prompts = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["completion"]}
        for row in bench.train_rows
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(bench.at(hub))
    # trainrig's AdamW, whose betas are not TRL's, and its schedule.
    optimizer = torch.optim.AdamW(
        model.parameters(), RATE, betas=AdamW().betas, eps=AdamW().epsilon, weight_decay=0.0
    )
    schedule = Constant(warmup=WARMUP)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule.multiplier(step, STEPS)
    )
    trainer = trl.GRPOTrainer(
        model=model, optimizers=(optimizer, rates),
        processing_class=transformers.AutoTokenizer.from_pretrained(bench.at(hub)),
        reward_funcs=exact, args=config, train_dataset=Dataset.from_list(prompts),
    )  # fmt: skip
    trainer.train()
    trainer.save_model(at)
    lines = [line for line in trainer.state.log_history if "reward" in line]
    assert len(lines) == STEPS
    import_checkpoint(at, bench.at(f"from-trl-{seed}"))
    return {"exact": bench.exact(f"from-trl-{seed}")[0], **summarise(lines, 1)}


def compute_interval(values):
    """Return the mean and the half width of its 95% interval."""
    half = T_FIVE_SEEDS * statistics.stdev(values) / len(values) ** 0.5
    return [round(statistics.mean(values), 4), round(half, 4)]


def compare(rows):
    """Return means with half widths for each side, and for the difference by seed."""
    figures = [*(f"{name}_{when}" for name in LOGGED for when in ("first", "last")), "exact"]
    return {
        **{
            side: {name: compute_interval([row[side][name] for row in rows]) for name in figures}
            for side in ("ours", "trl")
        },
        "ours_less_trl": compute_interval(
            [row["ours"]["exact"] - row["trl"]["exact"] for row in rows]
        ),
    }


def test_grpo_learns_as_well_as_trls(bench, monkeypatch, write_result):
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    start, share = bench.tune_start(0)
    export_checkpoint(bench.at(start), bench.at("hub"), HubFolder())
    import_checkpoint(bench.at("hub"), bench.at("again"))
    assert bench.exact("again")[0] == share
    found = {
        "steps": STEPS,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "settings": SETTINGS | {"learning_rate": RATE, "warmup": WARMUP},
        "start": share,
        "seeds": [],
    }
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed in SEEDS:
            row = {"seed": seed, "trl": train_by_trl(bench, "hub", seed)}
            print(json.dumps(row), flush=True)
            row["ours"] = train_by_trainrig(bench, start, seed)
            print(json.dumps(row), flush=True)
            found["seeds"].append(row)
    finally:
        torch.set_num_threads(before)
    found["means"] = compare(found["seeds"])
    write_result("grpo_beside_trl.json", found)
    for side in ("ours", "trl"):
        mean, half = found["means"][side]["exact"]
        assert mean - half > share
    difference, half = found["means"]["ours_less_trl"]
    assert difference + half >= 0, f"trainrig learns worse than TRL by {-difference} ± {half}"
