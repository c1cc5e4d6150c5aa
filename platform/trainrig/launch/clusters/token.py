"""Token of this user's clusters: anyone who has it can control them."""

import os
import secrets
from pathlib import Path


def find_token_path() -> Path:
    """Return the path of the token file, which is used unless RAY_AUTH_TOKEN is set."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()


def make_token() -> Path | None:
    """Create a token that only this user can read and return its path; None if there was one."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    path = find_token_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return None
    return path
