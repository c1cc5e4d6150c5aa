from collections import Counter

import pytest
import torch

from trainrig.errors import DataError
from trainrig.models.generation import Generation, Request, generate, generate_batch
from trainrig.models.token_sampling import NextToken, Sampling, derive_stream, draw

GREEDY = Sampling(temperature=0.0, maximum_tokens=10)
PROMPT = [3, 14, 15]


def greedy_without_cache(model, prompt, length):
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("seed", range(4))
def test_greedy_takes_the_likeliest_each_time_and_the_cache_changes_nothing(build, seed):
    model = build(seed=seed)
    expected = greedy_without_cache(model, PROMPT, 10)
    assert generate(model, PROMPT, GREEDY, stop=()) == Generation(expected, "length")


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others(build):
    model = build()
    sampling = Sampling(temperature=1.5, seed=1, maximum_tokens=20)
    first = generate(model, PROMPT, sampling, stop=())
    torch.rand(5)  # the global generator must have no influence
    assert generate(model, PROMPT, sampling, stop=()) == first
    other = sampling.model_copy(update={"seed": 2})
    assert generate(model, PROMPT, other, stop=()) != first


def test_a_stop_id_ends_the_text_and_is_left_out(build):
    model = build()
    free = generate(model, PROMPT, GREEDY, stop=()).ids
    stop = free[4]
    expected = free[: free.index(stop)]
    assert generate(model, PROMPT, GREEDY, stop={stop}) == Generation(expected, "end", stop)


@pytest.mark.parametrize(
    ("prompt", "wanted", "new", "stopped"),
    [
        (20, 4, 4, "length"),
        (20, 5, 4, "positions"),
        (23, 9, 1, "positions"),
        (24, 9, 0, "positions"),
    ],
)
def test_prompt_and_answer_never_exceed_the_positions(build, prompt, wanted, new, stopped):
    sampling = Sampling(temperature=0.0, maximum_tokens=wanted)
    written = generate(build(positions=24), [1] * prompt, sampling, stop=())
    assert (len(written.ids), written.stopped) == (new, stopped)


@pytest.mark.parametrize(("prompt", "hint"), [([], "end-of-text"), ([1] * 25, "shorten")])
def test_a_prompt_of_invalid_length_is_refused_with_the_limits(build, prompt, hint):
    with pytest.raises(DataError, match=f"{len(prompt)} tokens.*1 to 24.*{hint}"):
        generate(build(positions=24), prompt, GREEDY, stop=())


def test_ids_that_only_pad_the_table_are_never_drawn(build):
    sampling = Sampling(temperature=50.0, maximum_tokens=20)
    model = build()
    drawn = {
        i
        for seed in range(5)
        for i in generate(
            model, PROMPT, sampling.model_copy(update={"seed": seed}), stop=(), entries=7
        ).ids
    }
    assert drawn == set(range(7))


def count_frequencies(logits, sampling, draws=4000):
    stream = derive_stream(sampling)
    tokens = [NextToken(sampling, stream, place) for place in range(draws)]
    counts = Counter(draw(torch.tensor(logits).expand(draws, -1), tokens))
    return {token: count / draws for token, count in counts.items()}


@pytest.mark.parametrize(
    ("temperature", "top_k", "expected"),
    [
        # Logits are logs of 4 : 3 : 2 : 1. At temperature 1/2, the shares are proportional to the
        # squares.
        (1.0, None, {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
        (0.5, None, {0: 16 / 30, 1: 9 / 30, 2: 4 / 30, 3: 1 / 30}),
        (1.0, 2, {0: 4 / 7, 1: 3 / 7}),
        (1.0, 1, {0: 1.0}),
        (1.0, 9, {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
        (1e-40, None, {0: 1.0}),
        (0.0, None, {0: 1.0}),
    ],
)
def test_tokens_are_sampled_at_their_probabilities(temperature, top_k, expected):
    logits = torch.tensor([4.0, 3.0, 2.0, 1.0]).log().tolist()
    seen = count_frequencies(logits, Sampling(temperature=temperature, top_k=top_k))
    assert seen.keys() == expected.keys()
    assert seen == pytest.approx(expected, abs=0.03)  # four standard errors of 4,000 draws


def test_top_k_keeps_the_ids_of_the_likeliest_wherever_they_stand():
    assert count_frequencies([0.0, 5.0, 0.0, 5.0], Sampling(top_k=2)).keys() == {1, 3}


SHARED = [(3, 14, 15), (9,), (3, 14, 15), (3, 14, 15), (2, 6, 5, 3, 5), (9,)]


@pytest.mark.parametrize("attention", [{}, {"window": {"size": 4, "pattern": ("local", "global")}}])
@pytest.mark.parametrize("prompts", [SHARED, [(3, 14, 15)] * 5], ids=["some", "one"])
def test_a_shared_prompt_is_read_once_and_requests_are_independent(build, attention, prompts):
    model = build(attention=attention)
    read = []
    model.register_forward_pre_hook(lambda _, inputs: read.append(tuple(inputs[0].shape)))
    requests = [
        Request(prompt, Sampling(temperature=1.5, maximum_tokens=9, seed=seed))
        for seed, prompt in enumerate(prompts)
    ]
    found = generate_batch(model, requests, stop=())
    assert read[0] == (len(set(prompts)), max(map(len, prompts)))
    assert set(read[1:]) == {(len(prompts), 1)}
    assert found == [generate_batch(model, [request], stop=())[0] for request in requests]
    assert len({completion.ids for completion in found}) == len(found)
