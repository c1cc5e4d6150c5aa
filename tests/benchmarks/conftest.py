"""Benchmarks run only where they are asked for: `make bench`."""

import pytest


def pytest_collection_modifyitems(config, items):
    if "bench" in (config.getoption("-m") or ""):
        return
    for item in items:
        if item.get_closest_marker("bench"):
            item.add_marker(pytest.mark.skip(reason="measures; run by `make bench`"))
