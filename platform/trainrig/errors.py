"""What can go wrong, by who can act on it.

    TrainrigError
    ├── InputError        the user's to fix: one line, exit 2, no traceback
    │   ├── ConfigError   the run file or the command line
    │   ├── DataError     the files it names
    │   │   ├── Diverged  a model whose losses or gradients are no longer finite
    │   │   └── FolderGone  the folder that a run writes to was removed meanwhile
    │   └── OutputTaken   the output folder holds something else
    ├── ClusterError      machines, network, storage: retried, then exit 1
    │   └── ClusterLost   Ray itself is gone: begun again where it was ours
    └── Unfinished        whole, but not at its end (stopped, preempted): exit 75, run it again

Anything else is a bug of ours and keeps its traceback.

Messages say where, what was found and what would do:
`smoke.toml: filters[0]: no key 'min_word' in Words; did you mean 'min_words'?`
"""


class TrainrigError(Exception):
    """Any failure that trainrig foresees. `exit_code` is what the command line ends with."""

    exit_code = 1


class InputError(TrainrigError):
    """What the user gave cannot work; the message says what would."""

    exit_code = 2


class ConfigError(InputError):
    """A run file or a command-line argument is wrong."""


class DataError(InputError):
    """A file that the user named is missing, unreadable, or does not fit the rest."""


class Diverged(DataError):
    """No update can be made: losses or gradients are not finite, whatever comes next."""


class FolderGone(DataError):
    """The folder that a run writes to was removed, or replaced, while the run went on."""


class OutputTaken(InputError):
    """The output folder was made by another run; mixing the two would lose both."""


class ClusterError(TrainrigError):
    """Machines, network or storage failed more often than was allowed."""


class ClusterLost(ClusterError):
    """The Ray that this process is connected to is no more, or does not answer."""


class Unfinished(TrainrigError):
    """The run ended whole but before its last step; the same command continues it."""

    exit_code = 75
