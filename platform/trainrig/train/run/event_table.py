"""Table of the events of a training run, from which docs/reference/events.md is generated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One event of a log: a row of docs/reference/events.md."""

    name: str
    fields: tuple[str, ...]  # without the fields that every event has
    meaning: str


TABLE = (
    Event(
        "attempt_started",
        ("attempt", "step", "workers", "why", "layout"),
        "A worker group begins to train from `step`. `why` is `start`, `fault`, `shrink`, "
        "`rollback`, `drain` or `grow`",
    ),
    Event("worker_started", ("attempt", "rank", "agent"), "The process of a rank has started"),
    Event("first_step", ("attempt", "step"), "The first update of the attempt is made"),
    Event(
        "numerics",
        ("attempt", "found"),
        "Versions, devices and settings on which the bits of the results depend",
    ),
    Event(
        "numerics_changed",
        ("attempt", "step", "what"),
        "From `step` on, results may not be bit-identical to before",
    ),
    Event(
        "layout_changed",
        ("attempt", "step", "before", "layout", "bits"),
        "From `step` on, the run uses another layout over its devices",
    ),
    Event(
        "tensor_spans_nodes",
        ("attempt", "groups", "of", "bytes_per_token"),
        "Ranks that share layers are on several nodes, so tensor parallelism is slow",
    ),
    Event(
        "checkpoint",
        ("attempt", "step", "stall_seconds", "seconds", "bytes"),
        "A checkpoint is complete. Training waited `stall_seconds` of the `seconds`",
    ),
    Event("checkpoint_failed", ("attempt", "step", "problem"), "A checkpoint was not saved"),
    Event(
        "checkpoint_copy_failed",
        ("attempt", "step", "problem"),
        "The second copy of a checkpoint was not saved",
    ),
    Event("checkpoint_damaged", ("problem",), "A damaged checkpoint was skipped"),
    Event(
        "step_skipped",
        ("attempt", "step", "data_step", "what"),
        "No update was made from a batch: its loss or gradient is an outlier, or not finite",
    ),
    Event(
        "spike",
        ("attempt", "step", "outliers", "first", "last", "skip", "back_to", "what"),
        "Several outliers close together. The run returns to the checkpoint `back_to` and skips "
        "the data steps in `skip`",
    ),
    Event(
        "objective_warning",
        ("attempt", "step", "what"),
        "A diagnostic of the objective shows that training does not do what it should",
    ),
    Event("alarm", ("name", "what", "action"), "An alarm was raised, once for each cause"),
    Event(
        "evaluation_started", ("evaluation", "checkpoint"), "A task begins to score a checkpoint"
    ),
    Event("evaluated", ("evaluation", "step", "seconds"), "A checkpoint has its scores"),
    Event(
        "evaluation_failed",
        ("evaluation", "step", "problem", "tries"),
        "A checkpoint could not be scored",
    ),
    Event(
        "evaluation_missing",
        ("attempt", "evaluation", "step"),
        "A rule asked for the score of a checkpoint that was never saved",
    ),
    Event("run_ended_by_score", ("attempt", "step", "why"), "Early stopping ended the run"),
    Event(
        "waiting_for_rollouts",
        ("attempt", "batch", "unit"),
        "The ranks wait for completions that are sampled ahead of training",
    ),
    Event("rollout_actor_started", ("actor", "node"), "A process that samples has started"),
    Event("rollout_actor_leaves", ("actor", "node"), "A process that samples ends as planned"),
    Event("rollout_actor_lost", ("actor", "problem"), "A process that samples was lost"),
    Event(
        "node_draining",
        ("attempt", "step", "nodes"),
        "Nodes of the attempt will be taken away: it saves and ends",
    ),
    Event(
        "nodes_added",
        ("attempt", "step", "nodes"),
        "More nodes have joined: the attempt saves and ends, and the next one is larger",
    ),
    Event("stop_requested", ("attempt", "step", "how"), "A signal or `trainrig stop` asks to end"),
    Event(
        "hang_seen",
        ("attempt", "problem", "step"),
        "A rank made no progress for too long, so the attempt is killed",
    ),
    Event(
        "grace_over",
        ("attempt", "problem", "step"),
        "The attempt did not stop in time, so it is killed",
    ),
    Event(
        "collectives_dumped",
        ("attempt", "rank", "step", "doing", "waits_in", "file"),
        "A rank that hangs wrote its last collectives to `file`",
    ),
    Event("worker_raised", ("attempt", "rank", "step"), "A rank raised an exception"),
    Event(
        "attempt_stopped",
        ("attempt", "step", "why"),
        "An attempt ended as asked, with its work up to `step` saved",
    ),
    Event(
        "attempt_failed",
        ("attempt", "problem", "seen_by", "step", "node"),
        "An attempt failed. `seen_by` is `agents`, `Ray`, `heartbeats`, `grace` or `storage`",
    ),
    Event(
        "back_off", ("seconds",), "The run waits before the next attempt, longer after each failure"
    ),
    Event(
        "node_quarantined", ("node", "faults", "step"), "A node made attempts fail and is avoided"
    ),
    Event(
        "node_needed",
        ("node", "faults", "step"),
        "A node made attempts fail, but the run needs it and uses it",
    ),
    Event(
        "waiting_for_nodes",
        ("step", "capacity"),
        "The cluster has space for `capacity` workers, fewer than the run needs",
    ),
    Event("cluster_lost", ("problem",), "The Ray cluster no longer answers"),
    Event("run_stopped", ("step", "how"), "The run ended before its last step, and can continue"),
    Event("finished", ("step",), "The run is at its last step"),
    Event(
        "killed_by_quickstart",
        ("attempt", "step", "rank", "target"),
        "The quickstart killed a worker, to show a restart",
    ),
)
