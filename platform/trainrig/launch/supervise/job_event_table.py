"""Table of the events of a submitted run, from which docs/reference/events.md is generated."""

from trainrig.train.run.event_table import Event

TABLE = (
    Event(
        "submitted",
        ("submission_id", "address", "versions"),
        "An attempt was submitted to the cluster at `address`",
    ),
    Event(
        "submitted_anew",
        (),
        "The user submitted the run again, so the next attempt has a new deadline",
    ),
    Event(
        "resubmitted",
        ("cause", "message"),
        "`trainrig submit` saw that the attempt was lost and submitted the run again",
    ),
    Event("pinned", (), "The attempt uses the library versions of the submitter"),
    Event(
        "other_versions",
        ("differences",),
        "The cluster has other versions of libraries than the submitter",
    ),
    Event("started", ("try", "pid"), "The supervisor started the verb"),
    Event(
        "retried",
        ("cause", "message", "exit_code", "progress", "seconds"),
        "The verb failed and is started again after `seconds`",
    ),
    Event("stop_requested", (), "`trainrig stop` asked the run to save and end"),
    Event("superseded", ("by",), "A newer attempt took the run over, with the figures of its cost"),
    Event("spent", ("node_seconds", "attended"), "The cost of an attempt up to its loss"),
    Event(
        "ended",
        ("state", "cause", "exit_code", "message", "tries"),
        "The run ended. A supervisor adds `tries`, `step`, `tokens`, `forced` and the cost",
    ),
    Event("notified", ("exit_code", "problem"), "How the command of `--notify` ended"),
)
