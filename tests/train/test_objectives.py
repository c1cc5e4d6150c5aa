"""The contract between the training step and an objective, by one that uses all of it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainrig.models.decoder import Decoder, initialise
from trainrig.objectives.objective_kinds import DPO, KTO
from trainrig.tokens.batches import IGNORE
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

STEPS = 3


@pytest.fixture(scope="module")
def spread(ranks, make_job, tmp_path_factory):
    """Return `spread(2)`: the first steps of two ranks with the objective Spread of rank.py."""
    job = make_job(tmp_path_factory.mktemp("spread"), training={"steps": STEPS})

    def run(world):
        first, *others = ranks(world, "spread_steps", job=job, count=STEPS)
        assert all(other == first for other in others)
        return first

    return job, run


def test_terms_statistics_and_auxiliary_terms_are_those_of_a_plain_loop(spread):
    job, run = spread
    model = Decoder(job.model)
    batches = job.make_batches()
    initialise(model, job.training.seed)
    with torch.no_grad():
        micros = [(micro, model(torch.from_numpy(micro.ids)).logits) for micro in batches.at(0)]
    nats = sum(
        functional.cross_entropy(
            logits.flatten(0, 1), torch.from_numpy(micro.targets).flatten(), reduction="sum"
        )
        for micro, logits in micros
    )
    log_z = torch.cat([logits.logsumexp(-1).mean(1) for _, logits in micros])
    expected = {
        "cross_entropy": float(nats) / batches.targets(0),
        "spread": float((log_z - log_z.mean()).square().mean()),
        "mean_logit": float(np.mean([float(logits.mean()) for _, logits in micros])) * 0.01,
    }
    found = run(1)
    terms, _ = found["parts"][0]
    assert terms == pytest.approx(expected, rel=1e-4, abs=1e-7)
    weighted = terms["cross_entropy"] + 0.1 * terms["spread"] + terms["mean_logit"]
    assert found["losses"][0] == pytest.approx(weighted, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_an_objective_of_several_terms_has_the_same_bits_at_any_number_of_ranks(world, spread):
    _, run = spread
    assert run(world) == run(1)


def test_the_loss_of_each_source_is_that_of_its_own_rows(straight):
    job = straight(2)
    batches = job.make_batches()
    lines = metrics.read_series(job.folder)
    names = {f"train/{source}/loss": source for source in batches.sources}
    seen = set()
    for line in lines:
        counts = dict.fromkeys(batches.sources, 0)
        for micro in batches.at(line["step"] - 1):
            for number, targets in zip(micro.sources.tolist(), micro.targets, strict=True):
                counts[batches.sources[number]] += int((targets != IGNORE).sum())
        there = {source for source, count in counts.items() if count}
        if len(there) > 1:
            mean = sum(line[f"train/{s}/loss"] * counts[s] for s in there) / sum(counts.values())
            assert mean == pytest.approx(line["train/loss"], rel=1e-6)
            seen |= there
        else:
            assert not names.keys() & line.keys()
    assert seen == set(batches.sources)
    assert RunFolder(job.folder).read_attempts()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "objective"), [("pairs", DPO()), ("labelled", KTO())])
def test_diagnostics_and_statistics_have_the_same_bits_at_any_number_of_ranks(
    kind, objective, ranks, make_job, tmp_path
):
    few = {"global_batch": 6, "micro_batch": 2}  # 3 micro-batches
    job = dataclasses.replace(make_job(tmp_path, batches=few), objective=objective)
    (alone,) = ranks(1, "tuning_steps", job=job, count=STEPS, kind=kind)
    for found in ranks(2, "tuning_steps", job=job, count=STEPS, kind=kind):
        assert found == alone
    if kind == "labelled":  # batches have other shares of desired completions, so other rewards
        assert all(diagnostics["reference_point"] >= 0 for diagnostics in alone["diagnostics"])
        return
    first = alone["diagnostics"][0]
    last = alone["diagnostics"][-1]
    assert last["chosen_reward"] > first["chosen_reward"]
    assert alone["losses"][-1] < alone["losses"][0]
