"""Peak memory of fine-tuning, measured in this process.

    python tuning_memory.py ours|trl ARGUMENTS.json

This is a script, because only a fresh process shows what a run needs. It prints a line of JSON: MiB
of the process after all imports, and its peak.
"""

import ctypes
import gc
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

CLEAR_PEAK = "5"  # man 5 proc, /proc/pid/clear_refs: resets the peak to the memory held now
MIB = 1024  # kB per MiB, as the system counts in kB


def read_status(name: str) -> float:
    """Return line `name` of /proc/self/status in MiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert found, name
    return int(found[1]) / MIB


def measure(work: Callable[[], None]) -> dict[str, float]:
    """Return the memory of this process before `work`, and its peak during it, in MiB."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    before = read_status("VmRSS")
    work()
    return {"before": round(before, 1), "peak": round(read_status("VmHWM"), 1)}


def prepare_ours(settings: dict[str, Any]) -> Callable[[], None]:
    """Return a function that does a whole trainrig run with references and the last checkpoint."""
    import torch._inductor  # noqa: F401  # what torch imports at a first step

    from trainrig.parallel.mesh import join_group
    from trainrig.posttrain.tuning import fine_tuning
    from trainrig.posttrain.tuning.tuning_run_file import FineTuning
    from trainrig.train import loop
    from trainrig.train.checkpoint import find_newest_valid
    from trainrig.train.elastic import trainer
    from trainrig.train.run.run_folder import RunFolder
    from trainrig.train.training_job import TrainingJob

    def run(job: TrainingJob, workers: int) -> trainer.TrainingResult:
        store = Path(tempfile.mkdtemp()) / "store"
        join_group(0, workers, f"file://{store}", timedelta(seconds=60))
        loop.train(job, RunFolder(job.folder).take_attempt(0), None, loop.UNSUPERVISED)
        last, _ = find_newest_valid(RunFolder(job.folder))
        assert last is not None
        return trainer.TrainingResult(last, restarts=0)

    trainer.run = run
    trainer.check_fit = lambda *_: None
    return lambda: fine_tuning.posttrain(FineTuning.model_validate(settings)) and None


def prepare_trl(settings: dict[str, Any]) -> Callable[[], None]:
    """Return a function that does a TRL run.

    `settings` has `rows`, `hub`, `kind`, the `arguments` of TRL's configuration, and `lora` or
    none.
    """
    import peft
    import transformers
    import trl
    from datasets import Dataset

    kind = settings["kind"]

    def work() -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(settings["hub"])
        model = transformers.AutoModelForCausalLM.from_pretrained(settings["hub"])
        lora = peft.LoraConfig(**settings["lora"]) if settings["lora"] else None
        config = (trl.SFTConfig if kind == "SFT" else trl.DPOConfig)(**settings["arguments"])
        trainer = (trl.SFTTrainer if kind == "SFT" else trl.DPOTrainer)(
            model=model, args=config, train_dataset=Dataset.from_list(settings["rows"]),
            processing_class=tokenizer, peft_config=lora,
        )  # fmt: skip
        trainer.train()

    return work


def main() -> None:
    import torch

    torch.set_num_threads(1)
    side, arguments = sys.argv[1:]
    settings = json.loads(Path(arguments).read_text())
    work = (prepare_ours if side == "ours" else prepare_trl)(settings)
    print(json.dumps(measure(work)), flush=True)
    os._exit(0)  # skips the exit handlers that imports registered


if __name__ == "__main__":
    main()
