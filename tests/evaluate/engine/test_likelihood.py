import random

import pytest
import torch

from trainrig.evaluate.engine.batched_reading import score_continuations
from trainrig.evaluate.engine.request_encoding import LikelihoodRequest, RequestEncoder


def score_alone(model, request):
    """Score one row without a cache."""
    ids = request.context + request.continuation
    with torch.inference_mode():
        logits = model(torch.tensor([ids[:-1]])).logits[0, len(request.context) - 1 :]
    nats = logits.double().log_softmax(-1)
    targets = torch.tensor(request.continuation)
    greedy = bool((logits.argmax(-1) == targets).all())
    return float(nats.gather(-1, targets[:, None]).sum()), greedy


def make_requests(kind):
    dice = random.Random(kind)

    def ids(least, most):
        return tuple(dice.randrange(8, 300) for _ in range(dice.randint(least, most)))

    shown = ids(20, 20) if kind == "few shots" else ()
    found = []
    for _ in range(12):
        context = shown + ids(1, 30)
        if kind == "one token":
            found += [LikelihoodRequest(context, (n,)) for n in (70, 80, 90)]
        elif kind == "single":
            found.append(LikelihoodRequest(context, ids(1, 9)))
        else:
            first = ids(1, 9)
            found += [LikelihoodRequest(context, c) for c in (first, ids(1, 9), first + ids(1, 4))]
    return found


@pytest.mark.parametrize("kind", ["choices", "few shots", "one token", "single"])
@pytest.mark.parametrize("batch_tokens", [1, 300, 10_000])
def test_a_continuation_is_as_likely_as_alone(tiny_model, kind, batch_tokens):
    requests = make_requests(kind)
    for request, found in zip(
        requests, score_continuations(tiny_model, requests, batch_tokens), strict=True
    ):
        nats, greedy = score_alone(tiny_model, request)
        assert found.log_likelihood == pytest.approx(nats, abs=1e-4)
        assert (found.greedy, found.tokens) == (greedy, len(request.continuation))


def test_the_models_most_likely_continuation_is_greedy(tiny_model):
    ids = [20, 30, 40]
    with torch.inference_mode():
        for _ in range(4):
            ids.append(int(tiny_model(torch.tensor([ids])).logits[0, -1].argmax()))
    own = LikelihoodRequest((20, 30, 40), tuple(ids[3:]))
    other = LikelihoodRequest((20,), (30, 40))
    (first, _) = score_continuations(tiny_model, [own, other], 1000)
    assert first.greedy


def test_a_shared_prefix_of_contexts_is_read_once(tiny_model, monkeypatch):
    read = []
    forward = tiny_model.forward
    monkeypatch.setattr(
        tiny_model,
        "forward",
        lambda ids, *more, **named: read.append(ids.numel()) or forward(ids, *more, **named),
    )
    shown = tuple(range(10, 60))
    requests = [
        LikelihoodRequest((*shown, n), (choice, 7)) for n in range(100, 108) for choice in (80, 90)
    ]
    score_continuations(tiny_model, requests, 10_000)
    # the examples, and the last token of each context with each choice
    assert read == [50, 8 * 2 * 2]


def test_the_context_boundary_equals_the_harness(tiny_encoder):
    encoder = RequestEncoder(tiny_encoder, positions=96, document_start=False)
    (found,) = encoder.request_continuations("the sea is ", ["grey"])
    # the space belongs to the continuation
    assert tiny_encoder.decode(found.context) == "the sea is"
    assert tiny_encoder.decode(found.continuation) == " grey"
    (empty,) = encoder.request_continuations("", [" grey"])
    assert empty.context == (tiny_encoder.end_of_text,)
    started = RequestEncoder(tiny_encoder, positions=96, document_start=True)
    (found,) = started.request_continuations("the sea", [" is"])
    assert found.context[0] == tiny_encoder.end_of_text
    assert tiny_encoder.decode(found.continuation) == " is"


def test_a_text_that_is_too_long_loses_its_beginning(tiny_encoder):
    encoder = RequestEncoder(tiny_encoder, positions=10, document_start=True)
    found = encoder.request(range(100, 120), (7, 8, 9))
    assert found.truncated and found.continuation == (7, 8, 9)
    assert found.context == tuple(range(112, 120)) and len(found.context) + 3 == 10 + 1
    assert encoder.request_generation(range(100, 120), 4).prompt == tuple(range(114, 120))
    assert not encoder.request((1, 2), (3,)).truncated


def test_each_token_of_a_text_is_predicted_once(tiny_encoder):
    encoder = RequestEncoder(tiny_encoder, positions=5, document_start=True)
    text = "the sea is grey because the sea is grey"
    windows = encoder.request_windows(text)
    predicted = [i for window in windows for i in window.continuation]
    assert tiny_encoder.decode(predicted) == text
    assert all(len(w.context) == 1 and len(w.continuation) <= 5 for w in windows)
    assert [w.context[0] for w in windows[1:]] == [w.continuation[-1] for w in windows[:-1]]
