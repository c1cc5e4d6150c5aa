"""Check of the files that Ray's launcher copies to the head, before a machine is rented.

The launcher itself looks for them only once the head is up. And the head accepts any token that it
gets, while clients here use the token of this user.
"""

import os
from pathlib import Path

from trainrig.errors import ConfigError
from trainrig.launch import ray_jobs
from trainrig.launch.check.document import at, ensure_table
from trainrig.launch.clusters.kinds import OpenCluster
from trainrig.launch.clusters.token import find_token_path

TOKEN = ".ray/auth_token"  # relative to the home folder of the user who runs Ray


def check_mounts(cluster: OpenCluster) -> None:
    """Raise ConfigError for a missing source, or a token that differs from this user's."""
    for target, source in ensure_table(at(cluster.data, "file_mounts")).items():
        where = f'{cluster.path}: file_mounts["{target}"]: {source}'
        path = Path(str(source)).expanduser()
        if target.endswith(TOKEN):
            _check_token(where, path)
        elif not path.exists():
            raise ConfigError(
                f"{where}: does not exist on this machine; create it, or leave it out"
            )


def _check_token(where: str, path: Path) -> None:
    given = bool(os.environ.get("RAY_AUTH_TOKEN", "").strip())
    source = "RAY_AUTH_TOKEN" if given else str(find_token_path())
    ours = ray_jobs.read_token()
    if ours is None:
        raise ConfigError(
            f"{where}: {source} holds no token; remove it, and `cluster up` makes one"
        )
    try:
        if path.read_text().strip() == ours:
            return
        found = "it holds another token"
    except OSError as error:
        found = f"its token cannot be read ({error.strerror})"
    put = f'printenv RAY_AUTH_TOKEN > "{path}"' if given else f'cp "{source}" "{path}"'
    raise ConfigError(
        f"{where}: {found}, so the cluster would refuse the token of {source}; copy that "
        f"one: (umask 077; {put})"
    )
