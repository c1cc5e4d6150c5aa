"""Reads a run's history from the files that W&B writes offline.

A file is a log in LevelDB's format: blocks of 32 KiB, whose entries are W&B's protobuf records. W&B
keeps the newest block in memory, so the last lines of a killed driver are in no file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# bytes of a file's header (":W&B" and version) and of a piece's (checksum, length, kind)
HEADER = 7
BLOCK = 32768  # bytes
WHOLE = 1  # kinds of pieces that complete an entry
LAST = 4


def read_history(folder: str | Path, run: str) -> Iterator[dict[str, Any]]:
    """Yield the logged lines of the run with the id `run`, in order.

    `folder`: the one named `wandb`. An incomplete last piece is dropped.
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
    at = HEADER
    entry = b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # too short for another piece, so it is padding
            at += left
            continue
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        piece = data[at + HEADER : at + HEADER + size]
        if len(piece) < size:
            return
        entry = entry + piece
        at = at + HEADER + size
        if kind in (WHOLE, LAST):
            yield entry
            entry = b""
