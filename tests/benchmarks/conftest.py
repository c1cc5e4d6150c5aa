"""Fixture of the benchmarks: a process group of one rank with the usual threads."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from support.edited_pages import read_pages
from support.tuning_fixtures import bench

from trainrig.parallel import numerics
from trainrig.parallel.mesh import join_group

__all__ = ["bench"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make this process the only rank of a process group."""
    join_group(0, 1, f"file://{tmp_path}/store", timedelta(seconds=60))
    yield
    dist.destroy_process_group()
    numerics.settle(1, deterministic=False)


@pytest.fixture(scope="session")
def pages(test_data: Path) -> list[tuple[str, str]]:
    """Return the URL and text of each page of the crawl."""
    return read_pages(test_data)


@pytest.fixture(scope="session")
def texts(pages: list[tuple[str, str]]) -> list[str]:
    """Return the text of each page of the crawl."""
    return [text for _, text in pages]
