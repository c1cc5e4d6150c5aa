"""Command-line verbs for runs on clusters: submit, jobs, logs, stop."""

import dataclasses
import functools
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from trainrig import command_line, config
from trainrig.command_line import (
    Changes,
    Json,
    RecordsHome,
    RunPath,
    Verb,
    argument,
    flag,
    option,
)
from trainrig.errors import ClusterError, ConfigError
from trainrig.job import if_stopped
from trainrig.launch.submit import limit_options
from trainrig.launch.supervise.attempt_ends import Limits


def _run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return ids that complete `incomplete`; none from a bucket, which is too slow for a TAB."""
    from trainrig.launch.supervise.run_record import Home as Records

    records = Records.choose(ctx.params.get("home"))
    if "://" in records.path:
        return []
    return [record.id for record in records.list() if record.id.startswith(incomplete)]


RunId = Annotated[
    str,
    argument(
        "ID",
        help="Id of the run, as `trainrig jobs` shows it, or its unique beginning.",
        autocompletion=_run_ids,
    ),
]
LAST_LINES = 10  # lines of the log to print first when following a live run


@dataclasses.dataclass(frozen=True)
class SubmitOptions:
    """Options of `submit` that say where a run goes, and what is done there."""

    address: Annotated[
        str | None,
        option(
            "URL",
            help="Ray dashboard of the cluster.  "
            "[default: $RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265]",
        ),
    ] = None
    home: RecordsHome = None
    check: Annotated[bool, flag("--check", help="Run all checks; submit nothing.")] = False
    detach: Annotated[
        bool, flag("--detach", help="Return once the run is submitted; do not follow it.")
    ] = False
    environment: Annotated[
        str,
        option(
            "KIND",
            help="Libraries to use: `cluster` for its own, or `pinned` to install this machine's "
            "versions.",
            autocompletion=command_line.make_word_completion("cluster", "pinned"),
        ),
    ] = "cluster"


def submit(
    context: typer.Context,
    verb: Verb,
    run_file: RunPath,
    changes: Changes = None,
    *,
    how: SubmitOptions,
    limit: limit_options.LimitOptions,
    as_json: Json = False,
) -> None:
    """Check a run and a cluster, run it there and follow it.

    The exit code is that of the run's own command. Ctrl-C stops following and leaves the run alone.
    Submitting again follows a live run, and continues a stopped one.
    """
    from trainrig.launch.submit.preflight import SubmissionRequest, examine

    _listen()
    _check_environment(how.environment)
    limits = limit.build()
    found = examine(SubmissionRequest(verb, run_file, changes or (), how.address, how.home, limits))
    record = found.record()
    alive = record is not None and record.read_status().alive
    refused = any(problem.what in ("run file", "output") for problem in found.problems)
    if how.check:
        _show_findings(found, as_json)
    elif found.finished and not alive:
        _say(f"{found.output}: already finished; nothing to do")
        _print_result({"state": "done", "output": found.output}, as_json)
        return
    elif alive and not refused:
        _run(found, limits, how.environment, _find_given_options(context), how.detach, as_json)
        return
    if found.problems:
        if not how.check:
            _show_findings(found, as_json)
        raise _explain_problems(found)
    if not how.check:
        found.show(_say)
        _run(found, limits, how.environment, _find_given_options(context), how.detach, as_json)


def _check_environment(environment: str) -> None:
    if environment not in ("cluster", "pinned"):
        hint = config.suggest_choice(environment, ["cluster", "pinned"])
        raise ConfigError(f"--environment {environment}: unknown environment{hint}")


def _explain_problems(found: Any) -> ClusterError | ConfigError:
    """Return the error for the problems of a submission that were printed before."""
    count = len(found.problems)
    said = f"submit: {count} {'problem' if count == 1 else 'problems'}; nothing was uploaded"
    return ClusterError(said) if found.unreachable and count == 1 else ConfigError(said)


def _run(
    found: Any,
    limits: Limits,
    environment: Any,
    given: Collection[str],
    detach: bool,
    as_json: bool,
) -> None:
    """Follow the run to its end; submit it first, unless it is live."""
    from trainrig.launch.submit.follow import Following, exit_code
    from trainrig.launch.submit.resubmit import Resubmitter
    from trainrig.launch.submit.submission import Submission

    record = found.record()
    attached = record is not None and record.read_status().alive
    if attached:  # the options of the live run also hold for a resubmission
        limits, environment = limit_options.read_submitted(record, limits, environment, given)
    submission = None if found.problems else Submission.of(found, limits, environment)
    record = submission.record if submission else record
    following = Following(record, _make_line_writer(sys.stderr if as_json else sys.stdout), _say)
    following.skip(LAST_LINES if attached else 0)
    if attached or submission is None:
        _say(f"{record.id}: already running; following it")
    else:
        record.begin_anew()
        attempt = _send(submission)
        _say(f"{record.id}: attempt {attempt.number} submitted to {attempt.address}")
    if detach:
        _say(_describe_follow_up(record.id, found.home.path))
        _print_result(
            {"id": record.id, "state": record.read_state(), "output": found.output}, as_json
        )
        return
    again = functools.partial(_send, submission) if submission else None
    watch = Resubmitter(following, limits, again, _say)
    ended = _wait_for_end(watch.wait_for_end, record.id, found.home.path)
    _print_result(_build_end_facts(record.id, found.output, ended), as_json)
    raise SystemExit(exit_code(ended))


def _find_given_options(context: typer.Context) -> set[str]:
    """Return the names of the options that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _send(submission: Any) -> Any:
    """Submit, and record whether libraries are pinned, as the next attempt must match."""
    from trainrig.launch.supervise.run_record import PINNED

    attempt = submission.submit()
    if submission.environment == "pinned":
        submission.record.record(PINNED, attempt.number)
    return attempt


def jobs(home: RecordsHome = None, as_json: Json = False) -> None:
    """List all submitted runs: state, progress, goodput and cost so far.

    Reads the records in storage, without asking a cluster.
    """
    from trainrig.launch.submit.jobs_table import build_rows, format_lines
    from trainrig.launch.supervise.run_record import Home as Records

    found = build_rows(Records.choose(home))
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in found]))
        return
    for line in format_lines(found):
        print(line)
    if not found:
        _say(f"{Records.choose(home).path}: no runs; start one with `trainrig submit`")


def logs(
    run: RunId,
    home: RecordsHome = None,
    follow: Annotated[
        bool, flag("--follow", "-f", help="Keep printing until the run ends.")
    ] = False,
) -> None:
    """Print the log of a run, over all attempts, even when its cluster is gone."""
    from trainrig.launch.submit.follow import Following, exit_code
    from trainrig.launch.supervise.run_record import Home as Records

    records = Records.choose(home)
    record = records.find(run)
    following = Following(
        record, _make_line_writer(sys.stdout), _say if follow else lambda line: None
    )
    if not follow:
        following.look()
        return

    def until_end() -> Mapping[str, Any]:
        for status in following.watch():
            if status.ended:
                return status.ended
            if status.state == "lost":
                raise ClusterError(
                    f"{record.id}: attempt {status.heartbeat.get('attempt', '?')} has "
                    "sent no heartbeat for too long; submit the run again to continue"
                )
        raise AssertionError("the status is followed until the run ends")

    raise SystemExit(exit_code(_wait_for_end(until_end, record.id, records.path)))


def stop(
    run: RunId,
    home: RecordsHome = None,
    now: Annotated[bool, flag("--now", help="End the run at once, without a checkpoint.")] = False,
    as_json: Json = False,
) -> None:
    """Stop a run once it has saved a checkpoint, and print what was saved."""
    from trainrig.launch.submit.follow import describe_end
    from trainrig.launch.submit.follow import stop as stop_run
    from trainrig.launch.supervise.run_record import Home as Records

    _listen()
    record = Records.choose(home).find(run)
    with if_stopped("the run is still asked to stop; run the same command to wait for it"):
        ended = stop_run(record, now, _say)
    if ended is None:
        raise ClusterError(
            f"{record.id}: no heartbeat, and its cluster does not answer; the run stops "
            "if its cluster comes back"
        )
    if as_json:
        print(json.dumps(_build_end_facts(record.id, record.read_description()["output"], ended)))
    else:
        print(f"{record.id}: {describe_end(ended)}")


def _wait_for_end(wait: Callable[[], Mapping[str, Any]], run: str, home: str) -> Mapping[str, Any]:
    """Return the result of `wait`; Ctrl-C stops the waiting and leaves the run alone."""
    try:
        with if_stopped(
            f"{run}: continues without being followed. {_describe_follow_up(run, home)}"
        ):
            return wait()
    except KeyboardInterrupt:
        _say(f"{run}: continues without being followed. {_describe_follow_up(run, home)}")
        raise SystemExit(130) from None


def _describe_follow_up(run: str, home: str) -> str:
    of = f"{run} --home {shlex.quote(home)}"
    return f"`trainrig logs {of} --follow` follows it, `trainrig stop {of}` stops it"


def _build_end_facts(run: str, output: str, ended: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in ended.items() if name not in ("event", "time")}
    return {"id": run, "output": output, **kept}


def _print_result(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))


def _show_findings(found: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"preflight": found.to_json(), "problems": len(found.problems)}))
    else:
        found.show(_say)


def _listen() -> None:
    """Print log messages in the format of all other messages."""
    logging.basicConfig(format="trainrig: %(message)s")


def _say(line: str) -> None:
    print(f"trainrig: {line}", file=sys.stderr, flush=True)


def _make_line_writer(stream: Any) -> Callable[[bytes], None]:
    def hear(line: bytes) -> None:
        try:
            stream.buffer.write(line + b"\n")
            stream.flush()
        except BrokenPipeError:  # the reader of the pipe has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            raise SystemExit(0) from None

    return hear
