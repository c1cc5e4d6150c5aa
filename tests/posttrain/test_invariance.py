"""Steps of tuning depend on their rows alone.

Micro-batch size, padding and the rest of the global batch change nothing.
"""

import dataclasses

import numpy as np
import pytest
import torch

from trainrig.models.decoder import Decoder, initialise
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import DPO, ORPO, SFT, Reward, SimPO
from trainrig.posttrain.tuning.answer_batches import PairBatches
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching
from trainrig.posttrain.tuning.fine_tuning import open_conversations
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.train.checkpoint import open_model

PAD = 1
LENGTH = 47
CHATS = [
    {"prompt": f"is {n} {'or ' * (n % 5)}", "completion": f"yes {'and ' * (n % 3)}é"}
    for n in range(24)
]
PAIRS = [
    {"prompt": f"is {n}", "chosen": f"yes {'and ' * (n % 4)}", "rejected": f"no {n}"}
    for n in range(8)
]
FORMS = {
    "packed": SFT(),
    "padded": SFT(),
    "DPO": DPO(),
    "ORPO": ORPO(),
    "SimPO": SimPO(),
    "Reward": Reward(),
}


def draw_references(source, numbers):
    return -20.0 - numbers, -21.5 - numbers / 3


@pytest.fixture
def opened(encode_rows, fresh, tmp_path):
    """Return `opened("DPO", 2)`: batches of 8 rows in micro-batches of 2, and a model."""

    def make(form, micro_batch):
        stored = open_model(fresh)
        model = stored.build()
        sizes = ConversationBatching(
            sequence_length=LENGTH,
            global_batch=8,
            micro_batch=micro_batch,
            packing="best_fit" if form == "packed" else "none",
        )
        if isinstance(FORMS[form], SFT):
            encode_rows(CHATS, sequence_length=LENGTH)
            return open_conversations(str(tmp_path / "encoded"), sizes, PAD), model
        encode_rows(PAIRS, rows="pairs", sequence_length=LENGTH)
        if form == "Reward":
            model = Decoder(stored.config.with_score_head())
            initialise(model, seed=2)
        shards = TokenShards.open(f"{tmp_path}/encoded/train")
        return PairBatches(shards, sizes, PAD, draw_references), model

    return make


def step_of(objective, batches, model, change=lambda micro: micro):
    """Return the loss and the gradients of the first global batch, one micro-batch at a time."""
    denominators = batches.denominators(0)
    total = 0.0
    weights = {term.name: term.weight / denominators[term.per] for term in objective.terms}
    for micro in batches.at(0):
        batch = DeviceBatch.copy(change(micro), torch.device("cpu"))
        computed = objective.compute(model, batch, {})
        loss = sum(weights[name] * term.values.sum() for name, term in computed.terms.items())
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_same(found, wanted):
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_one_micro_batch_of_eight_rows_equals_eight_of_one(form, opened):
    batches, model = opened(form, 8)
    assert len(batches.at(0)) == 1
    whole = step_of(FORMS[form], batches, model)
    batches, model = opened(form, 1)
    assert len(batches.at(0)) == 8
    assert_same(step_of(FORMS[form], batches, model), whole)


def pad_further(micro):
    """Return `micro` with seven more positions."""
    arrays = {}
    for name, array in micro.arrays.items():
        if array.ndim == 2:
            filled = IGNORE if "targets" in name else PAD if "ids" in name else 0
            array = np.pad(array, ((0, 0), (0, 7)), constant_values=filled)
        arrays[name] = array
    return dataclasses.replace(micro, arrays=arrays)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "packed"])
def test_more_padding_changes_nothing(form, opened):
    batches, model = opened(form, 2)
    wanted = step_of(FORMS[form], batches, model)
    model.zero_grad()
    widths = [micro.arrays for micro in batches.at(0)]
    assert (
        max(array.shape[1] for arrays in widths for array in arrays.values() if array.ndim == 2)
        < 41
    )
    assert_same(step_of(FORMS[form], batches, model, pad_further), wanted)


@pytest.mark.parametrize("form", ["DPO", "ORPO", "SimPO", "Reward"])
def test_the_loss_of_a_pair_does_not_depend_on_the_others(form, opened):
    objective = FORMS[form]

    def losses(micro_batch):
        batches, model = opened(form, micro_batch)
        found = {}
        for micro in batches.at(0):
            computed = objective.compute(  # type: ignore[attr-defined]
                model, DeviceBatch.copy(micro, torch.device("cpu")), {}
            )
            for name, term in computed.terms.items():
                if term.values.shape == micro.samples.shape:
                    for sample, value in zip(micro.samples.tolist(), term.values, strict=True):
                        found[name, sample] = value.item()
        return found

    alone = losses(1)
    together = losses(4)
    assert alone and alone.keys() == together.keys()
    for key, value in alone.items():
        assert together[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key
