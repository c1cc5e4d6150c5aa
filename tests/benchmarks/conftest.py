"""Fixtures of the benchmarks, which put the neighbouring modules on the import path."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from trainrig.parallel import numerics
from trainrig.parallel.mesh import join_group

# The modules of this folder import each other by name, because it is no package.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make this process the only rank of a process group."""
    join_group(0, 1, f"file://{tmp_path}/store", timedelta(seconds=60))
    yield
    dist.destroy_process_group()
    numerics.settle(1, deterministic=False)
