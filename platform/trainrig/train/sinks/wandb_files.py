"""Reads the files that W&B writes offline: what of a run's history is in them.

A file is a log in LevelDB's format, of blocks of 32 KiB, whose entries are W&B's protobuf records.
W&B keeps the newest block in memory: what a driver that was killed had handed over last is in none.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER = 7  # bytes: of a file, ":W&B" and its version; of a piece, sum, length and kind
BLOCK = 32768  # bytes
WHOLE, LAST = 1, 4  # kinds of pieces with which an entry ends


def read_history(folder: str | Path, run: str) -> Iterator[dict[str, Any]]:
    """What was logged of the run with the id `run`, in the order of the files and in theirs.

    `folder`: the one named `wandb`. A piece that was still being written is left out.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # an extra

    for path in sorted(Path(folder).glob(f"offline-run-*/run-{run}.wandb")):
        for entry in _read_entries(path.read_bytes()):
            record = Record.FromString(entry)
            if record.HasField("history"):
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }


def _read_entries(data: bytes) -> Iterator[bytes]:
    at, entry = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # too little for another piece: zeros
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece = data[at + HEADER : at + HEADER + size]
        if len(piece) < size:
            return
        entry, at = entry + piece, at + HEADER + size
        if kind in (WHOLE, LAST):
            yield entry
            entry = b""
