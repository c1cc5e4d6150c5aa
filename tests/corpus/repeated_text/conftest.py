import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def without_fsync() -> Iterator[None]:
    """Skip fsync for the thousands of small files, which need not survive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
