"""GRPO compared with TRL: the same small model, prompts, groups and reward, in alternation.

Both use float32 and one thread. The completions are sums that the fresh model knows nothing about,
so nearly all are as long as allowed. TRL runs with its defaults and samples by Transformers'
`generate`. Only settings that would slow it down here are changed (recomputation, bfloat16 on a
CPU). Figures are wall times, so they need an idle machine.
"""

import json
import statistics
import time
from pathlib import Path

import pytest
import torch

from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint
from trainrig.train.run import metrics

TESTS = Path(__file__).parents[1]
pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]
ROUNDS = 5
STEPS = 24
WARM = 4
PROMPTS = 32
SAMPLES = 8
TOKENS = 6
PHASES = ("data", "forward", "backward", "optimizer", "communication")


def compute_rate(ends):
    """Return steps per second from the end of step WARM on."""
    return (len(ends) - WARM) / (ends[-1] - ends[WARM - 1])


def run_trl(at, rows):
    """Return the steps per second of a TRL run."""
    import transformers
    import trl
    from datasets import Dataset

    ends = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *arguments, **others):
            ends.append(time.perf_counter())

    def exact(completions, answer, **others):
        said = (completion[0]["content"] for completion in completions)
        return [float(a.strip() == b) for a, b in zip(said, answer, strict=True)]

    config = trl.GRPOConfig(
        output_dir=str(at / "trl"), per_device_train_batch_size=PROMPTS * SAMPLES,
        num_generations=SAMPLES, max_completion_length=TOKENS, max_steps=STEPS, beta=0.0,
        learning_rate=3e-4, lr_scheduler_type="constant", weight_decay=0.0, temperature=1.0,
        gradient_checkpointing=False, bf16=False, report_to="none", use_cpu=True, logging_steps=1,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    prompts = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["completion"]}
        for row in rows
    ]
    trainer = trl.GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(at / "hub"),
        processing_class=transformers.AutoTokenizer.from_pretrained(at / "hub"),
        reward_funcs=exact, args=config, train_dataset=Dataset.from_list(prompts),
        callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    lengths = [
        line["completions/mean_length"]
        for line in trainer.state.log_history
        if "completions/mean_length" in line
    ]
    return compute_rate(ends), statistics.mean(lengths)


def test_grpo_on_sums(bench, tmp_path, monkeypatch, write_result):
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parameters = bench.model("fresh", 128, 1)
    export_checkpoint(bench.at("fresh"), bench.at("hub"), HubFolder())
    before = torch.get_num_threads()
    pairs = []
    shares = []
    lengths = []
    torch.set_num_threads(1)
    try:
        for nth in range(ROUNDS):
            lines = metrics.read_series(bench.reinforce(f"ours-{nth}", "fresh", STEPS, nth))
            theirs, length = run_trl(tmp_path, bench.train_rows)
            pairs.append((compute_rate([line["time"] for line in lines]), theirs))
            own = [line["train/diagnostics/completion_tokens"] for line in lines]
            lengths.append((statistics.mean(own), length))
            shares += [{name: line[f"time/{name}"] for name in PHASES} for line in lines[WARM:]]
    finally:
        torch.set_num_threads(before)
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    found = {
        "benchmark": "grpo-beside-trl",
        "parameters": parameters,
        "completions_a_step": PROMPTS * SAMPLES,
        "tokens_a_completion": [[round(share, 2) for share in pair] for pair in lengths],
        "ours_steps_per_second": [round(ours, 3) for ours, _ in pairs],
        "trl_steps_per_second": [round(theirs, 3) for _, theirs in pairs],
        "ratio": round(statistics.median(ratios), 3),
        "ratio_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
        "share_of_a_step": {
            name: round(statistics.mean(pair[name] for pair in shares), 3) for name in PHASES
        },
    }
    print("\n" + json.dumps(found))
    write_result("grpo-beside-trl.json", found)
    # TRL is as fast here (docs/evidence/tuning.md). The bound guards against regressions.
    assert found["ratio"] > 0.6
