"""Exceptions of trainrig, grouped by who can fix the problem.

    TrainrigError
    ├── InputError        the user can fix it: one line, exit code 2, no traceback
    │   ├── ConfigError   the run file or the command line is wrong
    │   ├── DataError     a file that the run file names is wrong
    │   │   ├── Diverged  losses or gradients of a model are no longer finite
    │   │   └── FolderGone  the folder that a run writes to was removed meanwhile
    │   └── OutputTaken   the output folder holds something else
    ├── ClusterError      machines, network or storage fail: retried, then exit code 1
    │   └── ClusterLost   Ray is gone: a local Ray is started again
    └── Unfinished        stopped cleanly before the end: exit code 75, run the command again
        └── ClusterReplaced  another cluster answers at the address of the run's own

Any other exception is a bug in trainrig and keeps its traceback.

Messages say where the problem is, what was found and what would be valid:
`smoke.toml: filters[0]: no key 'min_word' in Words; did you mean 'min_words'?`
"""


class TrainrigError(Exception):
    """Base of all failures that trainrig foresees, with the `exit_code` of the command line."""

    exit_code = 1


class InputError(TrainrigError):
    """The user's input is invalid; the message says what would be valid."""

    exit_code = 2


class ConfigError(InputError):
    """A run file or a command-line argument is wrong."""


class DataError(InputError):
    """A file that the user named is missing, unreadable, or does not fit the rest."""


class Diverged(DataError):
    """Training cannot continue because losses or gradients are not finite."""


class FolderGone(DataError):
    """The folder that a run writes to was removed or replaced while the run was active."""


class OutputTaken(InputError):
    """The output folder belongs to another run, whose files must not be mixed with new ones."""


class ClusterError(TrainrigError):
    """Machines, network or storage failed more often than the retry limits allow."""


class ClusterLost(ClusterError):
    """The Ray that this process is connected to has ended, or does not answer."""


class Unfinished(TrainrigError):
    """The run stopped cleanly before its last step; the same command resumes it."""

    exit_code = 75


class ClusterReplaced(Unfinished):
    """Another Ray cluster answers at the address of the one that the run was submitted to."""
