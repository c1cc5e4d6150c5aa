"""Table of the events of a submitted run, from which docs/reference/events.md is generated."""

from trainrig.train.run.event_table import EventKind

TABLE = (
    EventKind(
        "submitted",
        ("submission_id", "address", "versions"),
        "An attempt was submitted to the cluster at `address`",
    ),
    EventKind(
        "submitted_anew",
        (),
        "The user submitted the run again, so the next attempt has a new deadline",
    ),
    EventKind(
        "resubmitted",
        ("cause", "message"),
        "`trainrig submit` saw that the attempt was lost and submitted the run again",
    ),
    EventKind("pinned", (), "The attempt uses the library versions of the submitter"),
    EventKind(
        "other_versions",
        ("differences",),
        "The cluster has other versions of libraries than the submitter",
    ),
    EventKind("started", ("try", "pid"), "The supervisor started the verb"),
    EventKind(
        "retried",
        ("cause", "message", "exit_code", "progress", "seconds"),
        "The verb failed and is started again after `seconds`",
    ),
    EventKind("stop_requested", (), "`trainrig stop` asked the run to save and end"),
    EventKind(
        "superseded", ("by",), "A newer attempt took the run over, with the figures of its cost"
    ),
    EventKind("spent", ("node_seconds", "attended"), "The cost of an attempt up to its loss"),
    EventKind(
        "ended",
        ("state", "cause", "exit_code", "message", "tries"),
        "The run ended. A supervisor adds `tries`, `step`, `tokens`, `forced` and the cost",
    ),
    EventKind("notified", ("exit_code", "problem"), "How the command of `--notify` ended"),
)
