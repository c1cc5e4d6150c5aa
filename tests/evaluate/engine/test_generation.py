import random

import pytest
import torch

from trainrig.evaluate.engine.batched_reading import StopRule, answer_greedily
from trainrig.evaluate.engine.request_encoding import GenerationRequest


def generate_alone(model, prompt, stop):
    """Generate greedily for one row without a cache."""
    ids = list(prompt)
    answer = []
    with torch.inference_mode():
        while len(answer) < stop.maximum_tokens and len(ids) < model.config.positions:
            token = int(model(torch.tensor([ids])).logits[0, -1, : stop.entries].argmax())
            if token in stop.ids:
                break
            ids.append(token)
            answer.append(token)
            if stop.done(answer):
                break
    return tuple(answer)


@pytest.mark.parametrize("batch_tokens", [1, 200, 10_000])
def test_an_answer_in_a_batch_equals_the_answer_alone(tiny_model, batch_tokens):
    dice = random.Random(1)
    prompts = [tuple(dice.randrange(8, 300) for _ in range(dice.randint(1, 40))) for _ in range(9)]
    stop = StopRule(frozenset(range(20)), 12, 310, lambda ids: len(ids) > 2 and ids[-1] % 7 == 0)
    requests = [GenerationRequest(prompt) for prompt in prompts]
    found = answer_greedily(tiny_model, requests, stop, batch_tokens)
    assert found == [generate_alone(tiny_model, prompt, stop) for prompt in prompts]
    assert len({len(answer) for answer in found}) > 1  # rows end at different steps


def test_an_answer_ends_with_the_models_positions(tiny_model):
    stop = StopRule((), 50, 310, lambda ids: False)
    prompt = tuple(range(10, 100))
    (found,) = answer_greedily(tiny_model, [GenerationRequest(prompt)], stop, 1000)
    assert len(found) <= tiny_model.config.positions - len(prompt) + 1
