"""Entrypoint of a run's Ray job: supervises one attempt and exits with the verb's exit code.

python -m trainrig.launch.supervise.entrypoint --home HOME --run ID --attempt N
"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.job import GOES_ON, exit_codes, if_stopped, set_log_level
from trainrig.launch.redaction import RedactingFormatter
from trainrig.launch.supervise.attempt_ends import Cause, Limits, RunEnd
from trainrig.launch.supervise.attempt_start import compare_versions
from trainrig.launch.supervise.job_supervisor import JobSupervisor
from trainrig.launch.supervise.run_record import ENDED, Home, RunRecord
from trainrig.processes.stop_signals import list_stop_signals

# The cause and the message that a signal to the supervisor gives the end of its attempt.
SIGNALS: dict[signal.Signals, tuple[Cause, str]] = {
    signal.SIGTERM: ("preempted", "its supervisor was asked to end"),
    signal.SIGHUP: ("preempted", "its supervisor was asked to end"),
    signal.SIGINT: ("stopped", "interrupted"),
}


def build_verb_command(record: RunRecord) -> list[str]:
    """Return the command line that runs the verb of this run."""
    return [sys.executable, "-m", "trainrig", record.read_description()["verb"], record.run_file]


def main(arguments: Sequence[str] | None = None) -> None:
    """Supervise the attempt named on the command line, and exit with the verb's exit code."""
    parser = argparse.ArgumentParser(description="Run one attempt of a run and supervise it.")
    parser.add_argument("--home", required=True, help="the folder or bucket of the runs' records")
    parser.add_argument("--run", required=True, metavar="ID")
    parser.add_argument("--attempt", required=True, type=int, metavar="N")
    given = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("trainrig: %(message)s"))
    logging.basicConfig(handlers=[handler])
    with exit_codes(), if_stopped(GOES_ON):
        set_log_level()
        record = Home.choose(given.home).open(given.run)
        attempt = record.read_attempt(given.attempt)
        compare_versions(record, attempt.number)
        try:
            limits = config.build(Limits, attempt.limits, f"{record.id}: limits")
            supervisor = JobSupervisor(record, attempt, limits, build_verb_command(record))
        except ConfigError as error:
            end = RunEnd(error.exit_code, "input", str(error))
            record.record(ENDED, attempt.number, state=end.state, **asdict(end))
            raise
        listen(supervisor)
        code = supervisor.supervise()
    raise SystemExit(code)


def listen(supervisor: JobSupervisor) -> None:
    """Install signal handlers that ask the attempt to end."""
    for number in (*list_stop_signals(), signal.SIGINT):
        asked = SIGNALS[number]
        signal.signal(number, lambda *_, asked=asked: supervisor.ask(*asked))


if __name__ == "__main__":
    main()
