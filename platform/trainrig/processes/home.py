"""A home directory for processes that have none: in containers, and of users without an entry."""

import atexit
import os
import pwd
import shutil
import tempfile

PREFIX = "trainrig-home-"


def ensure_home() -> None:
    """Set HOME and USER where libraries would find neither, also for the processes that follow.

    Ray and torch refuse to start without them, and Ray writes its token there. A home that was made
    here is this user's alone, and removed when this process ends.
    """
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        entry = None
        names = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as `getpass.getuser` asks
        if not any(os.environ.get(name) for name in names):
            os.environ["USER"] = str(os.getuid())
    home = os.environ.get("HOME") or (entry.pw_dir if entry else "")
    # `os.path.isdir` takes a folder that may not be looked into as none; `Path.is_dir` raises.
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
