"""Runs that are live on a cluster, by every home that may hold their records.

Whoever takes a cluster down may have another TRAINRIG_HOME than whoever submitted to it. So it is
asked of the home of this shell, of those that were submitted from on this machine, and of the one
that the cluster's file gives its nodes.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainrig import storage
from trainrig.errors import DataError, TrainrigError
from trainrig.launch.clusters.kinds import OpenCluster
from trainrig.launch.record.known_clusters import list_addresses, read_noted_homes
from trainrig.launch.record.live_runs import list_live_runs
from trainrig.launch.record.run_record import Home, RunRecord

HOME = "TRAINRIG_HOME"
SET = re.compile(HOME + r"""=["']?([^\s"';]+)""")  # as an option of docker's or in a shell's line


def find_runs(
    cluster: OpenCluster, home: Home, ignored: Collection[str] = ()
) -> tuple[list[RunRecord], dict[str, str]]:
    """Those live on `cluster`, and the homes that cannot be read, with the reason. The homes of
    `ignored` are left out."""
    named = [Home.choose(path).path for path in _find_homes(cluster.data) if "$" not in path]
    noted = read_noted_homes(cluster.name)
    left_out = {Home.choose(path).path for path in ignored}
    live: list[RunRecord] = []
    unread: dict[str, str] = {}
    for path in dict.fromkeys([home.path, *noted, *named]):
        if path in left_out:
            continue
        try:
            if path in (*noted, *named):
                _see(path)
            live += list_live_runs(Home(path), cluster.name, list_addresses(cluster.name))
        except DataError as error:  # a bucket that is not there
            if path not in named:  # and none was made yet for the one that the file names
                unread[path] = str(error)
        except TrainrigError as error:
            unread[path] = str(error)
        except OSError as error:
            unread[path] = error.strerror or str(error)
    return live, unread


def _see(path: str) -> None:
    """Raise FileNotFoundError for a folder that is not here: a share, or another machine's."""
    if not path.startswith(storage.S3) and not Path(path).is_dir():
        raise FileNotFoundError(2, "no such folder on this machine", path)


def _find_homes(value: Any) -> Iterator[str]:
    """What a cluster's file gives nodes as their home, wherever it does."""
    if isinstance(value, str):
        yield from SET.findall(value)
    elif isinstance(value, list):
        for each in value:
            yield from _find_homes(each)
    elif isinstance(value, Mapping):
        if value.get("name") == HOME and isinstance(value.get("value"), str):
            yield value["value"]
        for each in value.values():
            yield from _find_homes(each)
