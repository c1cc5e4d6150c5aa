"""Whether layouts rank in speed as `trainrig plan --layout` predicts.

Two workers of one thread each are measured, with a hardware table that is measured just before.
Results are kept in results/layout-order.json; docs/evidence/layouts.md has the table. Only the
steps whose threads waited least for a core count: the others measure how busy the machine was.
"""

import json
import os
import statistics
import time
from typing import Any

import pytest
from support import layout_order

from trainrig import hardware
from trainrig.train.run_file.run_files import Pretraining

STEPS = int(os.environ.get("TRAINRIG_REPEATS", "11"))  # steps of each layout that count
MINUTES = 2  # per model, after which no further round begins
SHARE = 6  # one step in six counts
SEQUENCES = 4
MODELS: dict[str, dict[str, Any]] = {
    "wide": {  # many parameters for few tokens
        "channels": 256, "heads": 4, "kv_heads": 4, "feedforward_channels": 1024,
        "vocabulary": 1024, "positions": 64,
    },
    "long": {  # few parameters for many tokens
        "channels": 128, "heads": 2, "kv_heads": 2, "feedforward_channels": 512,
        "vocabulary": 512, "positions": 512,
    },
    "mixture": {
        "channels": 128, "heads": 2, "kv_heads": 2, "feedforward_channels": 256,
        "vocabulary": 512, "positions": 128,
        "feedforward": {"kind": "MixtureOfExperts", "experts": 8, "active": 2},
    },
}  # fmt: skip
TINY = {"channels": 32, "heads": 2, "kv_heads": 2, "vocabulary": 64, "positions": 8}
RATES = {
    "device": {"flops": 1e11, "bandwidth": 2e10},
    "reached": {"all-gather": 1e9, "reduce-scatter": 5e8},
    "link": {"latency": 1e-4, "takes": 0.5},
}


def make_fast_run(sizes: dict[str, Any]) -> Pretraining:
    """Return a run of four layers of the given sizes that need not be bit-identical everywhere."""
    return Pretraining(
        tokens="none",
        output="none",
        workers=2,
        model={"layers": 4, "tie_embeddings": False, **sizes},
        batches={
            "sequence_length": sizes["positions"],
            "global_batch": SEQUENCES,
            "micro_batch": 1,
        },
        training={
            "steps": 100_000,
            "deterministic": False,
            "metrics": {"every": 0, "layers_every": 0},
            "spikes": None,
        },
    )


def plan_layouts(sizes, rates, folder):
    """Return the run, the planner's prediction for each layout, and the tasks of the ranks."""
    path = folder / "hardware.toml"
    path.write_text(layout_order.write_table(rates))
    run = make_fast_run(sizes)
    predictions = layout_order.predict_steps(
        run, layout_order.list_layouts(run), hardware.load(str(path))
    )
    return run, predictions, layout_order.write_tasks(run, predictions)


def measure_layouts(ranks, run, tasks):
    """Return the STEPS of each layout whose ranks waited least for a core.

    A step is a pair of the seconds waited and the total seconds.
    """
    found = {name: [] for name in tasks}
    until = time.monotonic() + 60 * MINUTES
    while time.monotonic() < until and min(map(len, found.values())) < SHARE * STEPS:
        model = run.model.model_dump()
        both = ranks(2, "paced_layouts", model=model, layouts=tasks, rounds=2, visits=3)
        for name in tasks:
            for steps in zip(*(seconds[name] for seconds in both), strict=True):
                walls, waited = zip(*steps, strict=True)
                found[name].append((max(waited), max(walls)))
    return {name: sorted(steps)[:STEPS] for name, steps in found.items()}


def describe_layout(prediction, seconds):
    """Return a row of the result, in milliseconds."""
    terms = {name: round(1e3 * value, 1) for name, value in vars(prediction.seconds).items()}
    low, middle, high = statistics.quantiles([value for _, value in seconds])
    return {
        "predicted_ms": round(1e3 * prediction.seconds.total, 1),
        "measured_ms": round(1e3 * middle, 1),
        "quartiles_ms": [round(1e3 * low, 1), round(1e3 * high, 1)],
        "steps": len(seconds),
        "waited_ms": round(1e3 * statistics.median(term for term, _ in seconds), 1),
        "terms_ms": {name: value for name, value in terms.items() if value},
    }


@pytest.mark.bench
def test_layouts_are_in_the_order_that_is_predicted(ranks, tmp_path, write_result):
    rates = ranks(2, "reached_rates", width=512, megabytes=4, repeats=160)[0]
    print(json.dumps(rates, indent=1))
    found = {"rates": rates}
    pairs = 0
    right = 0
    apart_without = wrong_without = 0  # counts of pairs without a pipeline
    for model, sizes in MODELS.items():
        run, predictions, tasks = plan_layouts(sizes, rates, tmp_path)
        seconds = measure_layouts(ranks, run, tasks)
        rows = {
            name: describe_layout(prediction, seconds[name])
            for name, prediction in predictions.items()
        }
        apart, wrong = layout_order.count_pairs(
            {name: row["predicted_ms"] for name, row in rows.items()},
            {name: row["measured_ms"] for name, row in rows.items()},
        )
        pairs = pairs + len(apart)
        right = right + len(apart) - len(wrong)
        apart_without += sum(not has_pipeline(pair) for pair in apart)
        wrong_without += sum(not has_pipeline(pair) for pair in wrong)
        found[model] = {
            "layouts": rows,
            "pairs": len(apart),
            "right": len(apart) - len(wrong),
            "wrong": [
                {
                    layout: [rows[layout]["predicted_ms"], rows[layout]["measured_ms"]]
                    for layout in pair
                }
                for pair in wrong
            ],
        }
        print(json.dumps(found[model], indent=1))
        found |= {"pairs": pairs, "right": right, "share_right": round(right / pairs, 3)}
        write_result("layout-order.json", found)
    print(*layout_order.format_rows({model: found[model] for model in MODELS}), sep="\n")
    # All pairs should be right. The plan leaves out the cost of operations beyond their arithmetic.
    # It is much of a step here, most where micro-batches are many and small, as in pipelines.
    assert right >= 0.75 * pairs
    assert wrong_without <= 0.05 * apart_without


def has_pipeline(pair):
    return any(layout_order.LAYOUTS[name].degrees.pipeline > 1 for name in pair)


def test_pairs_that_differ_by_more_than_15_percent_are_judged():
    predicted = {"a": 100.0, "b": 110.0, "c": 120.0, "d": 200.0}
    apart, wrong = layout_order.count_pairs(predicted, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 2.5})
    assert len(apart) == 4  # neither a and b, nor b and c
    assert wrong == [("c", "d")]


@pytest.mark.parametrize("mixture", [False, True])
def test_the_planner_lays_each_layout_out(mixture, tmp_path):
    sizes = TINY | ({"feedforward": MODELS["mixture"]["feedforward"]} if mixture else {})
    run, predictions, tasks = plan_layouts(sizes, RATES, tmp_path)
    contexts = {name for name in layout_order.LAYOUTS if "context" in name}
    assert set(layout_order.LAYOUTS) - set(tasks) == (contexts if mixture else {"expert"})
    for task in tasks.values():
        rows, length = task["shape"]
        assert task["count"] * rows == SEQUENCES and length == run.model.positions
    assert all(prediction.seconds.total > 0 for prediction in predictions.values())


@pytest.mark.slow
def test_two_ranks_take_steps_in_turns(ranks, tmp_path):
    rates = ranks(2, "reached_rates", width=32, megabytes=1, repeats=3)[0]
    run, _, tasks = plan_layouts(TINY, rates, tmp_path)
    some = {name: tasks[name] for name in ("FSDP", "tensor", "1F1B, 4 micro-batches")}
    both = ranks(2, "paced_layouts", model=run.model.model_dump(), layouts=some, rounds=2, visits=1)
    for measured in both:
        assert {name: len(steps) for name, steps in measured.items()} == dict.fromkeys(some, 2)
