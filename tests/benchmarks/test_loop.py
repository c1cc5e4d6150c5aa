"""The whole loop on one device: its pace, stalls from checkpoints, and agreement of two runs.

On a GPU the model is GPT-2's size: 124M parameters, 1,024 positions, bfloat16, compiled. On a CPU
it has a hundred thousand parameters, and the figures mean little. Ray is not needed.
"""

import functools
import itertools
import statistics
from pathlib import Path

import pytest
import torch
from support.ranks.made_up import MadeUp
from support.side_by_side import print_result

from trainrig import hardware
from trainrig.flops import count_token_flops
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.parallel.mesh import find_local_device
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.loop import train
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import TrainingJob

TESTS = Path(__file__).parents[1]

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]
GPT2 = {"layers": 12, "channels": 768, "heads": 12, "vocabulary": 50_304, "positions": 1024}
SMALL = {"layers": 2, "channels": 64, "heads": 2, "vocabulary": 256, "positions": 64}
NOT_COUNTED = 3  # steps at the start, which compile and allocate the memory to copy to


@pytest.fixture
def make_job(tmp_path):
    """Return a function that makes the same run in a named folder: `make_job("one")`."""
    gpu = find_local_device().type == "cuda"
    model = DecoderConfig.model_validate(GPT2 if gpu else SMALL)
    rows, steps = (16, 60) if gpu else (4, 20)
    settings = {"steps": steps, "checkpoints": {"every": 10}, "held_out": {"rows": 0}}
    if gpu:
        settings |= {"compile": {}, "precision": {"compute": "bfloat16"}}
    batches = functools.partial(MadeUp, 4, (rows, model.positions), model.vocabulary)

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        return TrainingJob(str(folder), model, Training.model_validate(settings), batches, "{}")

    return make


def read_results(job):
    """Return the results that must be equal when a run is repeated."""
    series = [
        (line["train/loss"], line["train/grad_norm"]) for line in metrics.read_series(job.folder)
    ]
    newest, _ = find_newest_valid(RunFolder(job.folder))
    return series, {p.name: p.read_bytes() for p in Path(newest.path).glob("*.safetensors")}


def find_peak(compute):
    """Return this GPU's peak FLOP/s from the hardware table, or None on a CPU or if unknown."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name().lower()
    known = hardware.load().devices
    return next(
        (d.find_peak(compute) for key, d in known.items() if key.split("-")[0] in name), None
    )


def test_the_loop_on_one_device(alone, make_job):
    jobs = [make_job(name) for name in ("one", "again")]
    for job in jobs:
        train(job, RunFolder(job.folder).take_attempt(0), None)
    job = jobs[0]
    lines = list(metrics.read_series(job.folder))
    saves = [e for e in RunFolder(job.folder).read_events() if e["event"] == "checkpoint"]
    saved = {event["step"] for event in saves}
    seconds = [
        after["time"] - before["time"]
        for before, after in itertools.pairwise(lines[NOT_COUNTED:])
        if not {before["step"], after["step"]} & saved
    ]
    tokens = (lines[-1]["train/tokens"] - lines[0]["train/tokens"]) / (len(lines) - 1)
    pace = tokens / statistics.median(seconds)
    # PaLM's rule (arXiv:2204.02311, appendix B) counts attention over all positions, masked or not.
    flops = count_token_flops(job.model, job.model.positions, causal=False).training
    most = find_peak(job.training.precision.compute)
    same = read_results(jobs[0]) == read_results(jobs[1])
    print_result(
        benchmark="the whole loop on one device",
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        parameters=sum(p.numel() for p in Decoder(job.model).parameters()),
        tokens_per_second=round(pace),
        step_seconds_from_to=[round(min(seconds), 4), round(max(seconds), 4)],
        mfu=most and round(pace * flops / most, 4),
        stall_seconds=[event["stall_seconds"] for event in saves],
        two_runs_agree=same,
    )
    assert same
