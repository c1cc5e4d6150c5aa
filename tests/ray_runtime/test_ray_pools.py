import pytest

from trainrig.ray_runtime.ray_pools import NodePool, _list_pools, count_places, matches


@pytest.mark.parametrize(
    ("resources", "need", "expected"),
    [
        ({"CPU": 192, "GPU": 8}, {"CPU": 1, "GPU": 1}, 8),
        ({"CPU": 4}, {"CPU": 1, "GPU": 1}, 0),
        ({"CPU": 4.5}, {"CPU": 2}, 2),
        ({}, {"CPU": 1}, 0),
    ],
)
def test_a_node_has_a_place_for_each_whole_need(resources, need, expected):
    assert count_places(resources, need) == expected


def test_a_node_without_labels_matches_requests_without_labels():
    assert matches({}, {}) and not matches({}, {"trainrig.io/pool": "cpu"})
    assert matches({"trainrig.io/pool": "cpu", "a": "b"}, {"trainrig.io/pool": "cpu"})


def test_pools_are_read_from_the_file_of_an_autoscaler_without_its_head():
    config = {
        "max_workers": 3,
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "max_workers": 0},
            "cpu": {"resources": {"CPU": 32}, "labels": {"a": "b"}, "max_workers": 16},
            "none": {"resources": {"CPU": 1}, "max_workers": 0},
        },
    }
    (pool,) = (NodePool(**settings) for settings in _list_pools(config))
    assert pool == NodePool("cpu", {"CPU": 32}, {"a": "b"}, 3)
    assert str(pool) == "cpu: 3 nodes of 32 CPU"
    assert _list_pools({}) == []
