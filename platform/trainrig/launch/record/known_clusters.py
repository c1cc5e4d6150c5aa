"""What this machine keeps of the clusters that it brought up, or submitted to."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

HOMES = "homes.txt"  # a path a line: two that submit at once both append


def make_folder(name: str) -> Path:
    """The folder for the cluster `name`: its log, the file as it was launched, how to reach it."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    folder = Path(state, "trainrig", "clusters", name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def save_endpoint(name: str, how: Mapping[str, str]) -> None:
    """Note how the cluster `name` is reached, and where its files are."""
    (make_folder(name) / "reached.json").write_text(json.dumps(dict(how)))


def read_endpoint(name: str) -> dict[str, str]:
    """What was remembered; empty: nothing."""
    try:
        return dict(json.loads((make_folder(name) / "reached.json").read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def list_addresses(name: str) -> list[str]:
    """The addresses that runs may have been sent to."""
    how = read_endpoint(name)
    return [how[key] for key in ("jobs", "address") if key in how]


def note_home(name: str, home: str) -> None:
    """Keep in mind that runs on the cluster `name` have records in `home`. Raises OSError."""
    if home not in read_noted_homes(name):
        with (make_folder(name) / HOMES).open("a") as file:
            file.write(f"{home}\n")


def read_noted_homes(name: str) -> list[str]:
    """The paths of all homes that were noted for the cluster `name`, the first first."""
    try:
        return list(dict.fromkeys((make_folder(name) / HOMES).read_text().splitlines()))
    except FileNotFoundError:
        return []


def forget(name: str) -> None:
    """Once nothing of the cluster `name` is left: no run is on it, and it is reached no more."""
    if folder := read_endpoint(name).get("folder"):
        shutil.rmtree(folder, ignore_errors=True)
    (make_folder(name) / HOMES).unlink(missing_ok=True)


def record_launch(name: str, text: str) -> Path:
    """Keep `text`, the file as it is launched, for this user's eyes; its path."""
    path = make_folder(name) / "launched.yaml"
    path.touch(mode=0o600)
    path.write_text(text)
    return path
