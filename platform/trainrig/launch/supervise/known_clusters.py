"""Notes on this machine about clusters that it used, and the search for live runs on a cluster."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainrig.launch.supervise.run_record import Home, RunRecord

HOMES = "homes.txt"  # one path per line; two submissions at once both append


def make_folder(name: str) -> Path:
    """Create and return the folder of the cluster `name`: log, launched file, addresses."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    folder = Path(state, "trainrig", "clusters", name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def save_endpoint(name: str, how: Mapping[str, str]) -> None:
    """Save how to reach the cluster `name`, and where its files are."""
    (make_folder(name) / "reached.json").write_text(json.dumps(dict(how)))


def read_endpoint(name: str) -> dict[str, str]:
    """Read how to reach the cluster `name`; empty if nothing is saved."""
    try:
        return dict(json.loads((make_folder(name) / "reached.json").read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def list_addresses(name: str) -> list[str]:
    """Return the addresses that runs may have been sent to."""
    how = read_endpoint(name)
    return [how[key] for key in ("jobs", "address") if key in how]


def note_home(name: str, home: str) -> None:
    """Note that runs on the cluster `name` have records in `home`. Raises OSError."""
    if home not in read_noted_homes(name):
        with (make_folder(name) / HOMES).open("a") as file:
            file.write(f"{home}\n")


def read_noted_homes(name: str) -> list[str]:
    """Return the homes noted for the cluster `name`, oldest first."""
    try:
        return list(dict.fromkeys((make_folder(name) / HOMES).read_text().splitlines()))
    except FileNotFoundError:
        return []


def forget(name: str) -> None:
    """Delete the notes on the cluster `name`, once it is taken down."""
    if folder := read_endpoint(name).get("folder"):
        shutil.rmtree(folder, ignore_errors=True)
    (make_folder(name) / HOMES).unlink(missing_ok=True)


def record_launch(name: str, text: str) -> Path:
    """Write the launched cluster file, readable by this user alone, and return its path."""
    path = make_folder(name) / "launched.yaml"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


AT_ONCE = 16  # records read in parallel: each takes a few requests, and a home keeps all runs


def list_live_runs(home: Home, cluster: str, addresses: Sequence[str] = ()) -> list[RunRecord]:
    """Return the live runs whose newest attempt names `cluster` or one of `addresses`.

    If `cluster` is empty, only the addresses count.
    """

    def is_live_there(record: RunRecord) -> bool:
        newest = record.find_newest_attempt()
        if not newest:
            return False
        attempt = record.read_attempt(newest)
        named = bool(cluster) and attempt.cluster == cluster
        return (named or attempt.address in addresses) and record.read_status().alive

    records = home.list()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        live = list(threads.map(is_live_there, records))
    return [record for record, alive in zip(records, live, strict=True) if alive]
