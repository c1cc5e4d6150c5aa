"""A sweep whose driver is killed: it resumes, repeats no run, and predicts a larger run's loss."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from support.local_trials import train_in_this_process
from support.waiting import wait_until

from trainrig import config
from trainrig.corpus.curate import Curation, curate
from trainrig.errors import DataError
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import RUNS_FILE, RunsTable
from trainrig.scaling.regression.foretelling import HoldOut
from trainrig.scaling.sweep.design_progress import DESIGN_FILE
from trainrig.scaling.sweep.sweep import Sweep, sweep
from trainrig.scaling.sweep.trial import is_over
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.train.run.run_folder import RunFolder

pytestmark = pytest.mark.ray

VERB = "import sys; from trainrig.cli import main; main(['sweep', sys.argv[1], '--json'])"
PATIENCE = 1_800.0  # s for the runs that a kill waits for


def build(tokens: str, output: Path, pairs: list[tuple[float, float]], **changes: Any) -> Sweep:
    settings: dict[str, Any] = {"stage": "sweep", "tokens": tokens, "output": str(output)}
    settings["design"] = {"kind": "Points", "pairs": pairs}
    return config.build(Sweep, settings | changes, "sweep.toml")


def start_driver(run: Sweep, folder: Path) -> "subprocess.Popen[str]":
    """Start `trainrig sweep` in a separate process with its own Ray cluster."""
    path = folder / "sweep.toml"
    path.write_text(config.to_toml(run))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", VERB, str(path)], env=environment, **pipe)


def find_finished_runs(run: Sweep) -> set[str]:
    """Return the run folders that are finished."""
    found = Path(run.output).glob("trials/*/*")
    return {str(folder) for folder in found if is_over(str(folder))}


def killed_after(run: Sweep, runs: int, folder: Path) -> dict[str, int]:
    """Start the sweep and SIGKILL its driver once `runs` runs are finished and others are running.

    Returns the number of attempts of each finished run.
    """
    return kill_driver_when(run, lambda: len(find_finished_runs(run)) >= runs, folder)


def kill_a_trial(run: Sweep, process: "subprocess.Popen[str]") -> None:
    """Send SIGKILL to a training trial of this driver's Ray.

    Trials of a driver that was killed before may live on for seconds; they are left alone.
    """
    while process.poll() is None:
        for folder in set(map(str, Path(run.output).glob("trials/*/*"))) - find_finished_runs(run):
            for event in RunFolder(folder).read_events():
                ours = event["event"] == "numerics" and is_below(process.pid, event["pid"])
                if ours and kill_if_unfinished(folder, event["pid"]):
                    return
        time.sleep(0.02)
    raise AssertionError("no trial was met while it trained")


def is_below(ancestor: int, pid: int) -> bool:
    """Return whether process `pid` descends from `ancestor`."""
    try:
        return ancestor in {parent.pid for parent in psutil.Process(pid).parents()}
    except psutil.Error:
        return False


def kill_if_unfinished(folder: str, pid: int) -> bool:
    """Stop the process, kill it if its run was not finished, and return whether it was killed."""
    try:
        os.kill(pid, signal.SIGSTOP)
        inside = not is_over(folder)
        os.kill(pid, signal.SIGKILL if inside else signal.SIGCONT)
    except ProcessLookupError:
        return False
    return inside


def resume(run: Sweep, folder: Path, kill: bool = False) -> dict[str, Any]:
    """Run the same command again to its end and return its output.

    With `kill`, a running trial is killed.
    """
    process = start_driver(run, folder)
    if kill:
        kill_a_trial(run, process)
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert (
        not kill
        or "its process died: killed by SIGKILL; it resumes from its last checkpoint" in err
    )
    assert process.returncode == 0, err
    return json.loads(out)


def read_stable_table(run: Sweep) -> Any:
    """Return the table without the columns that vary from run to run."""
    return pq.read_table(Path(run.output, RUNS_FILE)).drop_columns(["seconds", "cost"])


def predict(law: Law, parameters: float, tokens: float, unique: float) -> dict[str, Any]:
    """Return the prediction of `law` for a run that was not made yet."""
    interval = law.compute_interval(
        lambda form: float(form.compute_loss(parameters, tokens, unique))
    )
    return {
        "parameters": parameters,
        "tokens": tokens,
        "predicted": float(law.form.compute_loss(parameters, tokens, unique)),
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }


def add_measured_loss(largest: dict[str, Any], runs: RunsTable) -> dict[str, Any]:
    """Return the prediction with the measured loss of the longest run of the largest size."""
    row = max(range(len(runs)), key=lambda row: (runs.parameters[row], runs.tokens[row]))
    assert runs.state[row] == "end" and runs.tokens[row] == pytest.approx(largest["tokens"], 0.01)
    measured = float(runs.loss[row])
    error = {"error": largest["predicted"] / measured - 1} if "predicted" in largest else {}
    return largest | {"measured": measured} | error


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_whose_driver_and_a_trial_are_killed_gives_the_same_table(
    one_ray, tokens, tmp_path
):
    small = {
        "batches": {"sequence_length": 32, "micro_batch": 8},
        "training": {"fewest_steps": 24, "checkpoint_every": 4},
    }
    pairs = [(n, d) for n in (6e3, 12e3) for d in (1_500.0, 3_000.0, 6_000.0)]
    undisturbed = build(tokens, tmp_path / "undisturbed", pairs, **small)
    sweep(undisturbed)
    run = build(tokens, tmp_path / "killed", pairs, **small)
    before = killed_after(run, 2, tmp_path)
    assert 2 <= len(before) < len(pairs)
    resume(run, tmp_path, kill=True)
    assert read_stable_table(run) == read_stable_table(undisturbed)
    after = {folder: len(RunFolder(folder).read_attempts()) for folder in before}
    assert after == before  # no finished run was trained again


OPTIMAL = {
    "kind": "OptimalDesign",
    "budgets": ["1.8e9FLOPs", "1.9e9FLOPs"],
    "predict": [48_000, 20_000],
    "parameters": [6_000, 24_000],
    "tokens_per_parameter": [0.1, 0.2],
    "noise": 0.01,
}


def read_predicted_stages(run: Sweep) -> list[bool]:
    """Return for each stage of the design whether its prediction was written."""
    path = Path(run.output, DESIGN_FILE)
    if not path.exists():
        return []
    return ["reason" in stage for stage in json.loads(path.read_bytes())["stages"]]


def kill_driver_when(run: Sweep, is_reached: Callable[[], bool], folder: Path) -> dict[str, int]:
    """Start the sweep, SIGKILL its driver once `is_reached`, and return attempts by finished run.

    The sweep must not have ended before.
    """
    process = start_driver(run, folder)
    wait_until(is_reached, process=process, seconds=PATIENCE, every=0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return {folder: len(RunFolder(folder).read_attempts()) for folder in find_finished_runs(run)}


@pytest.mark.soak
@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_a_designed_sweep_killed_within_and_between_stages_gives_the_same_design_file(
    tokens, tmp_path, monkeypatch
):
    """Train the undisturbed sweep in this process, and two trials of the killed one at a time."""
    settings: dict[str, Any] = {
        "design": OPTIMAL,
        "batches": {"sequence_length": 32, "micro_batch": 4, "epochs": 4},
        "training": {"fewest_steps": 6, "checkpoint_every": 4},
    }
    undisturbed = build(tokens, tmp_path / "one", [], **settings)
    with monkeypatch.context() as patched:
        train_in_this_process(patched)
        sweep(undisturbed)
    expected = Path(undisturbed.output, DESIGN_FILE).read_bytes()
    first, *_, last = (stage["runs"] for stage in json.loads(expected)["stages"])
    together = {"cpus": 0.5, "at_once": 2}
    run = build(tokens, tmp_path / "killed", [], **settings, trials=together)

    def count() -> int:
        return len(find_finished_runs(run))

    moments: list[Callable[[], bool]] = [
        lambda: count() >= 1,  # within the first stage
        lambda: count() >= first,  # before its prediction is written
        lambda: any(read_predicted_stages(run)),  # after that
        lambda: count() > first,  # within the second stage
    ]
    kept: dict[str, int] = {}
    for is_reached in moments:
        found = kill_driver_when(run, is_reached, tmp_path)
        assert {folder: found[folder] for folder in kept} == kept
        kept = found
    assert first < len(kept) < last
    resume(run, tmp_path)
    assert Path(run.output, DESIGN_FILE).read_bytes() == expected
    assert read_stable_table(run) == read_stable_table(undisturbed)
    assert len(find_finished_runs(run)) == last
    assert {folder: len(RunFolder(folder).read_attempts()) for folder in kept} == kept


@dataclass(frozen=True)
class Form:
    """Settings of one size of the real sweep."""

    pairs: list[tuple[float, float]]
    largest: tuple[float, float]
    archives: str  # pattern of the crawl's archives
    vocabulary: int
    kill_after: int  # runs
    settings: dict[str, Any]


SHORT = Form(
    pairs=[(n, d) for n in (5.2e3, 20e3, 40e3, 80e3) for d in (160e3, 320e3, 640e3)],
    largest=(120e3, 960e3),
    archives="000[0-2].warc.gz",
    vocabulary=512,
    kill_after=2,
    # Steps have 1,024 tokens. The rule's own batches are smaller, and at its learning rate the
    # larger models would learn less with them than the small ones.
    settings={
        "batches": {"sequence_length": 128},
        "batch_factor": 8.0,
        "training": {"fewest_steps": 150},
    },
)
# N, and the budgets of 6ND that each size is trained to.
BUDGETS = {
    30e3: (1e12, 2e12),
    60e3: (1e12, 2e12, 4e12),
    120e3: (1e12, 2e12, 4e12),
    240e3: (1e12, 2e12, 4e12, 8e12),
}
LONG = Form(
    pairs=[(n, budget / (6 * n)) for n, budgets in BUDGETS.items() for budget in budgets],
    largest=(500e3, 1.6e13 / (6 * 500e3)),
    archives="*.warc.gz",
    vocabulary=512,
    kill_after=3,
    settings={
        "batches": {"sequence_length": 128, "micro_batch": 32},
        "seeds": [0, 1],
        "seeds_up_to": 30e3,
        # For so little compute, the rule would give large batches and so few steps.
        "search": {
            "parameters": 30e3,
            "tokens": 1.5e6,
            "rate_factors": [0.5, 1.0, 2.0, 4.0],
            "batch_factors": [0.25, 0.5],
            "scheduler": {"kind": "ASHA"},
        },
    },
)


def prepare_tokens(form: Form, test_data: Path, folder: Path) -> str:
    """Curate and tokenize the crawl, train its tokenizer, and return the tokens' folder."""
    documents, tokenizer, tokens = (str(folder / n) for n in ("documents", "tokenizer", "tokens"))
    source = {
        "name": "crawl",
        "paths": [str(test_data / "crawl" / form.archives)],
        "extractor": {"kind": "Resiliparse"},
        # Few rules, as so small a crawl has to give enough tokens for four passes of the longest
        # run.
        "filters": [
            {"kind": "Length", "min_characters": 200},
            {"kind": "RepeatedLines", "max_in_a_row": 10},
        ],
    }
    curation = {"stage": "curate", "output": documents, "workers": 2, "sources": [source]}
    curate(config.build(Curation, curation, "curate.toml"))
    entries = {"kind": "ByteLevelBPE", "vocabulary": form.vocabulary}
    training = {"stage": "tokenizer", "documents": documents, "output": tokenizer}
    training |= {"tokenizer": entries, "sample": {"bytes": 8_000_000}}
    make_tokenizer(config.build(TokenizerTraining, training, "tokenizer.toml"))
    tokenization = {"stage": "tokenize", "documents": documents, "tokenizer": tokenizer}
    tokenization |= {"output": tokens, "workers": 2, "held_out": 0.05}
    tokenize(config.build(Tokenization, tokenization, "tokenize.toml"))
    return tokens


def fit_constants(
    runs: RunsTable, largest: tuple[float, float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fitted law's constants and its prediction for the largest run, or why it failed.

    The form is parametric. Where its fit has no minimum, Kaplan's form is used, which has one
    constant less, because small models need not show an irreducible loss.
    """
    parameters, tokens = largest
    refused: dict[str, str] = {}
    for form in ("Parametric", "Kaplan"):
        try:
            law = fit_law(runs, LawFit(form=form, hold_out=HoldOut(share=0.0)), "crawl").law
        except DataError as error:
            refused[form] = str(error)
            continue
        constants = {
            name: estimate.model_dump(mode="json") for name, estimate in law.estimates.items()
        }
        prediction = predict(law, parameters, tokens, float(runs.unique_tokens[0]))
        return {"form": form, "refused": refused, **constants}, prediction
    return {"refused": refused}, {"parameters": parameters, "tokens": tokens}


def run_sweep(form: Form, test_data: Path, folder: Path) -> dict[str, Any]:
    """Tokenize, sweep with a killed driver, predict the largest run by a law, and train it."""
    began = time.monotonic()
    tokens = prepare_tokens(form, test_data, folder)
    run = build(tokens, folder / "sweep", form.pairs, **form.settings)
    before = killed_after(run, form.kill_after, folder)
    printed = resume(run, folder)
    assert {name: len(RunFolder(name).read_attempts()) for name in before} == before
    # At most one more attempt of the running trials: nothing of the killed driver kept training.
    attempts = max(len(RunFolder(name).read_attempts()) for name in find_finished_runs(run))
    assert attempts <= 2
    law, prediction = fit_constants(read_table(run.output), form.largest)
    (folder / "foretold.json").write_text(json.dumps(prediction))
    larger = build(tokens, folder / "sweep", [*form.pairs, form.largest], **form.settings)
    grown = resume(larger, folder)
    runs = read_table(larger.output)
    cost = printed.pop("cost")
    return {
        "largest": add_measured_loss(prediction, runs),
        "constants": law,
        "finished_before_the_kill": len(before),
        "attempts_most": attempts,
        "sweep": printed,
        "overhead_seconds_a_trial": cost["overhead_seconds_a_trial"],
        "flops_6nd": float(runs.flops_6nd.sum()),
        "flops": float(runs.flops.sum()),
        "epochs_most": grown["epochs_most"],
        "seconds": round(time.monotonic() - began),
    }


@pytest.mark.soak
@pytest.mark.data
@pytest.mark.timeout(1800)
def test_a_small_real_sweep_with_a_killed_driver_predicts_a_larger_run(
    one_ray, test_data, tmp_path
):
    """Take three to seven minutes of two cores, depending on their speed."""
    found = run_sweep(SHORT, test_data, tmp_path)
    print(json.dumps(found))
    assert found["constants"]["form"] == "Parametric"
    assert abs(found["largest"]["error"]) < 0.1


@pytest.mark.soak
@pytest.mark.data
@pytest.mark.timeout(7200)
def test_a_real_sweep_with_a_killed_driver_predicts_a_larger_run(
    one_ray, test_data, write_result, tmp_path
):
    """Take forty minutes of two cores; TRAINRIG_SWEEP names a folder to resume in."""
    found = run_sweep(LONG, test_data, Path(os.environ.get("TRAINRIG_SWEEP", tmp_path)))
    print(json.dumps(found))
    write_result("sweep.json", found)
    assert abs(found["largest"]["error"]) < 0.05
    assert found["overhead_seconds_a_trial"] < 2
