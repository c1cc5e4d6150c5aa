"""Learning of small models: sums from a teacher, and one rule from revisions.

Figures are in `results`.
"""

import json
import random
from pathlib import Path

import pytest

from trainrig.posttrain.row_run_files import TeacherScoring
from trainrig.posttrain.stages.constitutional_stage import revise_answers
from trainrig.posttrain.stages.prompted_run_files import ConstitutionalChain
from trainrig.posttrain.stages.teacher_stage import store_teacher

pytestmark = pytest.mark.soak


SEEDS = (0, 1, 2)
ON_POLICY_STEPS = 300


def distil(bench, seed):
    """Return the students' accuracy, and how often their answers equal their teacher's."""

    def at(name):
        return f"{name}-{seed}"

    figures = {"seed": seed}
    sizes = {"teacher": (128, 1 + 10 * seed), "student": (64, 2 + 10 * seed)}
    for name, (channels, drawn) in sizes.items():
        figures[f"{name}_parameters"] = bench.model(at(f"fresh-{name}"), channels, drawn)
    bench.tune(at("teacher"), at("fresh-teacher"), 500, seed=seed)
    figures["teacher_exact"], taught = bench.exact(at("teacher"))
    scoring = {
        "checkpoint": bench.at(at("teacher")),
        "conversations": bench.at("sums"),
        "entries": 16,
        "temperature": 2.0,
        "output": bench.at(at("expected")),
        "workers": 0,
        "batch": 128,
    }
    figures["covered"] = store_teacher(TeacherScoring.model_validate(scoring)).counts["covered"]
    distillation = {"kind": "Distillation", "temperature": 2.0}
    ways = {
        "distilled": {"teacher": bench.at(at("expected")), "objective": distillation},
        "plain": {},
    }
    for name, changes in ways.items():
        bench.tune(at(name), at("fresh-student"), 600, seed=seed, **changes)
    for estimator, lr in (("full", 1e-3), ("sampled", 3e-4)):
        bench.reinforce(
            at(estimator), at("plain"), ON_POLICY_STEPS, seed, lr,
            teacher=bench.at(at("teacher")), rewards=(),
            objective={"kind": "OnPolicyDistillation", "estimator": estimator},
        )  # fmt: skip
    for name in (*ways, "full", "sampled"):
        figures[f"{name}_exact"], said = bench.exact(at(name))
        same = sum(a == b for a, b in zip(said, taught, strict=True))
        figures[f"{name}_agreement"] = same / len(taught)
    print(json.dumps(figures), flush=True)
    return figures


@pytest.mark.timeout(7200)
def test_a_student_of_a_quarter_of_the_size_agrees_with_its_teacher(bench, write_result):
    """Distil from given answers, and from the student's own.

    The latter start from the student that was trained on given answers.
    """
    found = []
    for seed in SEEDS:
        found.append(distil(bench, seed))
        write_result("distillation.json", {"on_policy_steps": ON_POLICY_STEPS, "seeds": found})
    # The bounds come from three seeds. A margin of .3 over the agreement of plain tuning held for
    # one seed and failed for another, whose plain student learnt the sums alone. An untrained
    # student (seed 0) learns little from a teacher of its own answers.
    for figures in found:
        assert figures["teacher_exact"] >= 0.4
        assert figures["distilled_agreement"] >= 0.5
        assert figures["distilled_agreement"] >= figures["plain_agreement"] + 0.1
        assert figures["full_agreement"] >= figures["plain_agreement"]


@pytest.mark.timeout(3600)
def test_rules_as_critic_and_tuning_on_revisions_raise_the_share_that_passes(bench, write_result):
    """A model that answers yes or no, with or without a full stop, must learn to end with one."""
    dice = random.Random(1)

    def rows(count, first):
        return [{"prompt": f"is {first + n}?"} for n in range(count)]

    said = [
        row | {"completion": dice.choice(["yes", "no"]) + dice.choice(["", "."])}
        for row in rows(600, 0)
    ]
    # Prompts for revisions look different, so the model is trained on answers to these too, half of
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
