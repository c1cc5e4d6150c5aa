import pytest
import torch

from trainrig.models.generation import PreallocatedCache, WindowCache


def pieces(lengths, rows=2, heads=3, channels=4):
    generator = torch.Generator().manual_seed(1)
    size = (rows, heads, sum(lengths), channels)
    keys, values = torch.randn(2, *size, generator=generator)
    return keys, values, lengths


def test_a_cache_returns_all_keys_and_allocates_once():
    keys, values, lengths = pieces([5, 1, 1, 3])
    cache = PreallocatedCache(10)
    at = 0
    places = set()
    for length in lengths:
        end = at + length
        seen = cache.extend(keys[:, :, at:end], values[:, :, at:end])
        assert torch.equal(seen[0], keys[:, :, :end]) and torch.equal(seen[1], values[:, :, :end])
        places.add(seen[0].data_ptr())
        at = end
    assert len(cache) == 10 and len(places) == 1
    with pytest.raises(ValueError, match="11 positions exceed the cache's capacity of 10"):
        cache.extend(keys[:, :, :1], values[:, :, :1])


@pytest.mark.parametrize("window", [1, 2, 5, 30])
@pytest.mark.parametrize("lengths", [[1] * 23, [9] + [1] * 14, [3, 4, 1, 1, 8, 1, 5]])
def test_a_windowed_cache_returns_the_visible_keys(window, lengths):
    keys, values, _ = pieces(lengths)
    cache = WindowCache(window, sum(lengths))
    at = 0
    for length in lengths:
        end = at + length
        seen = cache.extend(keys[:, :, at:end], values[:, :, at:end])
        first = max(0, at - window + 1)
        assert torch.equal(seen[0], keys[:, :, first:end])
        assert torch.equal(seen[1], values[:, :, first:end])
        assert len(cache) == end
        at = end
    assert cache._keys.shape[2] <= 2 * window
