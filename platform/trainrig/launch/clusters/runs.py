"""Search for live runs on a cluster, in every home that may hold their records.

The user who takes a cluster down may have another TRAINRIG_HOME than the user who submitted to it.
So three kinds of homes are searched: that of this shell, those used for submissions from this
machine, and those that the cluster's file gives its nodes.
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
# matches options of docker and lines of shell scripts
SET = re.compile(HOME + r"""=["']?([^\s"';]+)""")


def find_runs(
    cluster: OpenCluster, home: Home, ignored: Collection[str] = ()
) -> tuple[list[RunRecord], dict[str, str]]:
    """Return the live runs on `cluster`, and the unreadable homes with the reason.

    The homes in `ignored` are skipped.
    """
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
        except DataError as error:  # the bucket does not exist
            if path not in named:  # the bucket that the file names may not have been created yet
                unread[path] = str(error)
        except TrainrigError as error:
            unread[path] = str(error)
        except OSError as error:
            unread[path] = error.strerror or str(error)
    return live, unread


def _see(path: str) -> None:
    """Raise FileNotFoundError for a folder that this machine does not have, such as a share."""
    if not path.startswith(storage.S3) and not Path(path).is_dir():
        raise FileNotFoundError(2, "no such folder on this machine", path)


def _find_homes(value: Any) -> Iterator[str]:
    """Yield every home that a cluster's file sets for its nodes."""
    if isinstance(value, str):
        yield from SET.findall(value)
    elif isinstance(value, list):
        for item in value:
            yield from _find_homes(item)
    elif isinstance(value, Mapping):
        if value.get("name") == HOME and isinstance(value.get("value"), str):
            yield value["value"]
        for item in value.values():
            yield from _find_homes(item)
