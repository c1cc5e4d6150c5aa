"""Table of the events of a training run, from which docs/reference/events.md is generated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EventKind:
    """One event of a log: a row of docs/reference/events.md."""

    name: str
    fields: tuple[str, ...]  # without the fields that every event has
    meaning: str


TABLE = (
    EventKind(
        "attempt_started",
        ("attempt", "step", "workers", "why", "layout"),
        "A worker group begins to train from `step`. `why` is `start`, `fault`, `shrink`, "
        "`rollback`, `drain` or `grow`",
    ),
    EventKind("worker_started", ("attempt", "rank", "agent"), "The process of a rank has started"),
    EventKind("first_step", ("attempt", "step"), "The first update of the attempt is made"),
    EventKind(
        "numerics",
        ("attempt", "found"),
        "Versions, devices and settings on which the bits of the results depend",
    ),
    EventKind(
        "numerics_changed",
        ("attempt", "step", "what"),
        "From `step` on, results may not be bit-identical to before",
    ),
    EventKind(
        "layout_changed",
        ("attempt", "step", "before", "layout", "bits"),
        "From `step` on, the run uses another layout over its devices",
    ),
    EventKind(
        "tensor_spans_nodes",
        ("attempt", "groups", "of", "bytes_per_token"),
        "Ranks that share layers are on several nodes, so tensor parallelism is slow",
    ),
    EventKind(
        "checkpoint",
        ("attempt", "step", "stall_seconds", "seconds", "bytes"),
        "A checkpoint is complete. Training waited `stall_seconds` of the `seconds`",
    ),
    EventKind("checkpoint_failed", ("attempt", "step", "problem"), "A checkpoint was not saved"),
    EventKind(
        "checkpoint_copy_failed",
        ("attempt", "step", "problem"),
        "The second copy of a checkpoint was not saved",
    ),
    EventKind("checkpoint_damaged", ("problem",), "A damaged checkpoint was skipped"),
    EventKind(
        "step_skipped",
        ("attempt", "step", "data_step", "what"),
        "No update was made from a batch: its loss or gradient is an outlier, or not finite",
    ),
    EventKind(
        "spike",
        ("attempt", "step", "outliers", "first", "last", "skip", "back_to", "what"),
        "Several outliers close together. The run returns to the checkpoint `back_to` and skips "
        "the data steps in `skip`",
    ),
    EventKind(
        "objective_warning",
        ("attempt", "step", "what"),
        "A diagnostic of the objective shows that training does not do what it should",
    ),
    EventKind("alarm", ("name", "what", "action"), "An alarm was raised, once for each cause"),
    EventKind(
        "evaluation_started", ("evaluation", "checkpoint"), "A task begins to score a checkpoint"
    ),
    EventKind("evaluated", ("evaluation", "step", "seconds"), "A checkpoint has its scores"),
    EventKind(
        "evaluation_failed",
        ("evaluation", "step", "problem", "tries"),
        "A checkpoint could not be scored",
    ),
    EventKind(
        "evaluation_missing",
        ("attempt", "evaluation", "step"),
        "A rule asked for the score of a checkpoint that was never saved",
    ),
    EventKind("run_ended_by_score", ("attempt", "step", "why"), "Early stopping ended the run"),
    EventKind(
        "waiting_for_rollouts",
        ("attempt", "batch", "unit"),
        "The ranks wait for completions that are sampled ahead of training",
    ),
    EventKind("rollout_actor_started", ("actor", "node"), "A process that samples has started"),
    EventKind("rollout_actor_leaves", ("actor", "node"), "A process that samples ends as planned"),
    EventKind("rollout_actor_lost", ("actor", "problem"), "A process that samples was lost"),
    EventKind(
        "node_draining",
        ("attempt", "step", "nodes"),
        "Nodes of the attempt will be taken away: it saves and ends",
    ),
    EventKind(
        "nodes_added",
        ("attempt", "step", "nodes"),
        "More nodes have joined: the attempt saves and ends, and the next one is larger",
    ),
    EventKind(
        "stop_requested", ("attempt", "step", "how"), "A signal or `trainrig stop` asks to end"
    ),
    EventKind(
        "hang_seen",
        ("attempt", "problem", "step"),
        "A rank made no progress for too long, so the attempt is killed",
    ),
    EventKind(
        "grace_over",
        ("attempt", "problem", "step"),
        "The attempt did not stop in time, so it is killed",
    ),
    EventKind(
        "collectives_dumped",
        ("attempt", "rank", "step", "doing", "waits_in", "file"),
        "A rank that hangs wrote its last collectives to `file`",
    ),
    EventKind("worker_raised", ("attempt", "rank", "step"), "A rank raised an exception"),
    EventKind(
        "attempt_stopped",
        ("attempt", "step", "why"),
        "An attempt ended as asked, with its work up to `step` saved",
    ),
    EventKind(
        "attempt_failed",
        ("attempt", "problem", "seen_by", "step", "node"),
        "An attempt failed. `seen_by` is `agents`, `Ray`, `heartbeats`, `grace` or `storage`",
    ),
    EventKind(
        "back_off", ("seconds",), "The run waits before the next attempt, longer after each failure"
    ),
    EventKind(
        "node_quarantined", ("node", "faults", "step"), "A node made attempts fail and is avoided"
    ),
    EventKind(
        "node_needed",
        ("node", "faults", "step"),
        "A node made attempts fail, but the run needs it and uses it",
    ),
    EventKind(
        "waiting_for_nodes",
        ("step", "capacity"),
        "The cluster has space for `capacity` workers, fewer than the run needs",
    ),
    EventKind("cluster_lost", ("problem",), "The Ray cluster no longer answers"),
    EventKind(
        "run_stopped", ("step", "how"), "The run ended before its last step, and can continue"
    ),
    EventKind("finished", ("step",), "The run is at its last step"),
    EventKind(
        "killed_by_quickstart",
        ("attempt", "step", "rank", "target"),
        "The quickstart killed a worker, to show a restart",
    ),
)
