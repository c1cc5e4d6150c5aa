"""What benchmarks share: the modules beside them, and a process that is a rank of its own."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from trainrig.parallel import numerics
from trainrig.parallel.mesh import join_group

# They import `side_by_side`, `peers` and one another: this folder is no package.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process as the only rank of a group."""
    join_group(0, 1, f"file://{tmp_path}/store", timedelta(seconds=60))
    yield
    dist.destroy_process_group()
    numerics.settle(1, deterministic=False)
