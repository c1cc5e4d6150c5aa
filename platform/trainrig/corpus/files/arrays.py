"""Named arrays as .npz files whose bytes depend on the arrays alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage


def save_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as an .npz file; equal arrays give equal bytes."""
    keywords: dict[str, Any] = dict(arrays)
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        np.savez(file, **keywords)


def load_arrays(path: str, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays `names` of an .npz file, or all of its arrays.

    Other arrays are not read.
    """
    # The file is closed at once: callers open thousands, and a process may hold about 1024 open.
    with np.load(storage.fetch_local_path(path), allow_pickle=False) as file:
        return {name: file[name] for name in names or file.files}
