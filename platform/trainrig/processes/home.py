"""A temporary home directory for processes without one, for example in containers."""

import atexit
import os
import pwd
import shutil
import tempfile

PREFIX = "trainrig-home-"


def ensure_home() -> None:
    """Set HOME and USER if they are missing, for this process and its children.

    Ray and torch refuse to start without them, and Ray writes its token to the home directory. A
    home made here is accessible to this user only, and is removed when this process ends.
    """
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        entry = None
        names = (
            "LOGNAME",
            "USER",
            "LNAME",
            "USERNAME",
        )  # the variables that `getpass.getuser` reads
        if not any(os.environ.get(name) for name in names):
            os.environ["USER"] = str(os.getuid())
    home = os.environ.get("HOME") or (entry.pw_dir if entry else "")
    # For a folder without read permission, `os.path.isdir` is False, but `Path.is_dir` raises.
    if home and os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK):  # noqa: PTH112
        os.environ["HOME"] = home
        return
    made = tempfile.mkdtemp(prefix=PREFIX)
    os.environ["HOME"] = made
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
