"""Random numbers by key and position: known values, invariance, and their distribution."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import stats
from torch.profiler import ProfilerActivity, profile

from trainrig import randomness
from trainrig.randomness import RandomKey, draw_normals, draw_uniforms, draw_words, normal_quantile

KEY = RandomKey(0, "test")
DRAWS = (draw_words, draw_uniforms, draw_normals)


class Seeded(RandomKey):
    """Key whose stream is the bare seed, as in published values."""

    @property
    def stream(self) -> int:
        return self.seed


def draw_places(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count)


def test_the_words_are_those_of_splitmix64() -> None:
    """Compare with the first outputs of the author's program for the seed 1234567."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    known += [4593380528125082431, 16408922859458223821]
    assert draw_words(Seeded(1234567, ""), draw_places(5)).view(np.uint64).tolist() == known


@pytest.mark.parametrize("draw", DRAWS)
def test_numpy_and_torch_draw_the_same_bits(draw) -> None:
    samples = np.array([[0], [5], [2**62]])
    by_numpy = draw(KEY, draw_places(30_001), samples)
    by_torch = draw(KEY, torch.arange(30_001), torch.from_numpy(samples))
    assert by_torch.dtype in (torch.int64, torch.float64)
    np.testing.assert_array_equal(by_numpy, by_torch.numpy())


@pytest.mark.parametrize("draw", DRAWS)
def test_any_slice_is_that_of_the_whole(draw) -> None:
    whole = draw(KEY, draw_places(5_000))
    for first, count in ((0, 1), (17, 400), (4_999, 1)):
        np.testing.assert_array_equal(
            draw(KEY, draw_places(count, first)), whole[first : first + count]
        )
    shuffled = np.random.default_rng(0).permutation(5_000)
    np.testing.assert_array_equal(draw(KEY, shuffled), whole[shuffled])
    by_sample = draw(KEY, draw_places(10), draw_places(7)[:, None])
    np.testing.assert_array_equal(draw(KEY, draw_places(10), np.array([3])), by_sample[3])


def test_the_quantile_is_that_of_the_standard_library() -> None:
    """CPython uses AS 241 too, with the C library's logarithm."""
    shares = np.concatenate(
        [draw_uniforms(KEY, draw_places(2_000)), 2.0 ** -np.arange(1, 53), [1e-300]]
    )
    found = normal_quantile(shares)
    wanted = [NormalDist().inv_cdf(share) for share in shares]
    np.testing.assert_allclose(found, wanted, rtol=1.6e-15)


def test_the_logarithm_is_right_to_the_last_bits() -> None:
    x = np.concatenate(
        [draw_uniforms(KEY, draw_places(5_000)) + 2.0**-53, [0.5, 1 - 2.0**-53, 1e-300]]
    )
    np.testing.assert_allclose(randomness._log(x), np.log(x), rtol=8e-16, atol=0)


def test_the_numbers_are_spread_as_they_should_be() -> None:
    count = 200_000
    flat = draw_uniforms(KEY, draw_places(count))
    bell = draw_normals(KEY, draw_places(count))
    assert stats.kstest(flat, "uniform").pvalue > 1e-3
    assert stats.kstest(bell, "norm").pvalue > 1e-3
    assert abs(bell.mean()) < 4 / math.sqrt(count)
    assert abs(bell.var() - 1) < 4 * math.sqrt(2 / count)
    low_byte = np.bincount(draw_words(KEY, draw_places(count)) & 255, minlength=256)
    assert stats.chisquare(low_byte).pvalue > 1e-3
    bits = np.unpackbits(draw_words(KEY, draw_places(count // 8)).view(np.uint8)).reshape(-1, 64)
    assert stats.binomtest(int(bits.sum()), bits.size).pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        RandomKey(1, "test"),
        RandomKey(0, "other"),
        RandomKey(0, "test", 1),
        RandomKey(0, "test", "1\n"),
    ],
)
def test_keys_have_nothing_to_do_with_each_other(other: RandomKey) -> None:
    count = 50_000
    mine = draw_normals(KEY, draw_places(count))
    its = draw_normals(other, draw_places(count))
    assert abs(np.corrcoef(mine, its)[0, 1]) < 4 / math.sqrt(count)
    assert not set(draw_words(KEY, draw_places(count)).tolist()) & set(
        draw_words(other, draw_places(count)).tolist()
    )


def test_samples_and_places_have_nothing_to_do_with_their_neighbours() -> None:
    table = draw_normals(KEY, draw_places(300), draw_places(300)[:, None])
    for one, two in ((table[:-1], table[1:]), (table[:, :-1], table[:, 1:]), (table, table.T)):
        off = ~np.eye(300, dtype=bool) if one is table else np.ones(one.shape, dtype=bool)
        bound = 4 / math.sqrt(off.sum() / (2 if one is table else 1))
        assert abs(np.corrcoef(one[off], two[off])[0, 1]) < bound
    assert stats.kstest(table.sum(0) / math.sqrt(300), "norm").pvalue > 1e-3


def test_nothing_draws_from_a_global_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    drawn = draw_normals(KEY, torch.arange(10))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(draw_normals(KEY, torch.arange(10)), drawn)


@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "after compiling"])
def test_a_draw_takes_two_arrays_at_a_time_and_one_of_what_is_returned(hooked) -> None:
    """This holds with a hook on frames too, which compilation sets: callers hold arguments then."""
    places_T = torch.arange(40_000)[None]
    samples_B1 = torch.arange(8)[:, None]
    set_hook = torch._C._dynamo.eval_frame.set_eval_frame
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        before = set_hook(False) if hooked else None
        try:
            drawn = draw_uniforms(KEY, places_T, samples_B1)
        finally:
            if hooked:
                set_hook(before)
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    running = np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"])
    assert running.max() / drawn.nbytes == pytest.approx(2, abs=0.3)
