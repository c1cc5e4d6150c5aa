"""Supervisors with children that are real processes: causes, requests, limits, and records."""

import json
import sys
import time
from pathlib import Path

import pytest
from support.launch.attended import DEAF, WHOLE, log_of

from trainrig.launch.supervise import metered_cost


def test_a_run_that_is_done_is_put_on_record_as_done(supervise, home):
    attended = supervise(home, "print('one'); print(); print('two', file=sys.stderr, end='')")
    ended = attended.end()
    assert attended.code == 0
    assert (ended["state"], ended["cause"], ended["exit_code"]) == ("done", "done", 0)
    assert ended["tries"] == 1 and attended.run.read_state() == "done"
    assert sorted(log_of(attended.run).split()) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("code", "state", "exit_code", "tries"),
    [
        ('end("ConfigError", "no key", 2)', "refused", 2, 1),
        ('end("DataError", "torn", 2)', "failed", 2, 1),
        ('end("ClusterError", f"{trial} nodes", 1)', "failed", 1, 2),
        ("os.kill(os.getpid(), signal.SIGKILL)", "failed", 137, 2),
        ("raise ZeroDivisionError", "failed", 1, 2),
        ('end("ClusterError", "a" * trial, 1)', "failed", 1, 4),
        ("if trial < 3: whole()", "done", 0, 3),
        ('if trial == 1: end("ClusterError", "none", 1)', "done", 0, 2),
    ],
)
def test_each_cause_is_retried_as_the_table_says(supervise, local, code, state, exit_code, tries):
    attended = supervise(local, code)
    ended = attended.end()
    assert (ended["state"], ended["tries"], attended.code) == (state, tries, exit_code)
    assert len(attended.events("started")) == tries
    assert len(attended.events("retried")) == tries - 1


def test_a_user_can_set_the_budgets(supervise, local):
    ended = supervise(local, 'end("DataError", "b" * trial, 2)', retries={"data": 2}).end()
    assert ended["tries"] == 3 and "retried 2 times" in ended["message"]


def test_a_stop_lets_the_child_end_whole(supervise, home):
    attended = supervise(home, WHOLE)
    attended.until_it_waits()
    attended.run.request_stop()
    ended = attended.end()
    assert (ended["state"], ended["cause"], attended.code) == ("stopped", "stopped", 75)
    assert ended["message"] == "asked to stop: step 3 of 9 is saved" and not ended["forced"]
    assert not attended.run.stop_requested(attended.attempt.number)


def test_a_child_that_does_not_end_in_its_grace_is_killed(supervise, local):
    attended = supervise(local, DEAF, grace=0.3)
    attended.until_it_waits()
    attended.run.request_stop()
    attended.until_state("stopping")
    ended = attended.end()
    assert (ended["state"], ended["forced"], attended.code) == ("stopped", True, 137)
    assert "within 0.3 s and was killed" in ended["message"]


def test_a_stop_between_tries_ends_the_wait(supervise, local):
    attended = supervise(local, "whole()", back_off=300.0)
    attended.until_state("waiting")
    attended.run.request_stop()
    assert attended.end()["state"] == "stopped"


def test_the_first_to_ask_is_the_cause(supervise, local):
    attended = supervise(local, WHOLE)
    attended.until_it_waits()
    attended.supervisor.ask("out of budget", "5.00 USD are spent")
    attended.supervisor.ask("stopped", "asked to stop")
    ended = attended.end()
    assert (ended["cause"], ended["message"].partition(":")[0]) == (
        "out of budget",
        "5.00 USD are spent",
    )


@pytest.mark.parametrize(("asked_for", "cause"), [(False, "deadline"), (True, "done")])
def test_the_deadline_continues_over_automatic_attempts(
    supervise, local, tmp_path, monkeypatch, asked_for, cause
):
    run = local.create("evaluate", f"{tmp_path}/out")
    now = time.time
    with monkeypatch.context() as past:
        past.setattr(time, "time", lambda: now() - 1000.0)
        run.take_attempt("job", "http://here", "", {})
    if asked_for:
        run.begin_anew()
    attended = supervise(local, "", deadline=900.0)
    ended = attended.end()
    assert (ended["attempt"], ended["cause"], ended["tries"]) == (2, cause, int(asked_for))


def test_the_deadline_counts_from_the_submission(supervise, local):
    attended = supervise(local, WHOLE, deadline=1.0)
    ended = attended.end()
    assert (ended["state"], ended["cause"]) == ("failed", "deadline")
    assert ended["message"].startswith("not finished within 1 s of its submission")


PRICES = """
[devices.cpu-core]
flops = { float32 = 1e9 }
memory = 1.0
watts = 1.0
source = "made up"

[instances.dear]
device = "cpu-core"
devices = 1
vcpus = 1
memory = 1.0
usd = 3600.0
as_of = "2026-01"
source = "made up"
"""


@pytest.fixture
def expensive_machine(tmp_path, monkeypatch):
    """Write a price table in which this machine costs a dollar a second."""
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    monkeypatch.setattr(metered_cost, "HERE", metered_cost.Kind("here", "dear", "on-demand"))
    return str(path)


def test_no_more_is_spent_than_was_allowed(supervise, local, expensive_machine):
    attended = supervise(local, WHOLE, hardware=expensive_machine, max_cost=61.0, grace=60.0)
    ended = attended.end()
    assert (ended["state"], ended["cause"], attended.code) == ("out of budget",) * 2 + (75,)
    assert 0 < ended["usd"] < 61.0 and "max_cost is 61" in ended["message"]
    assert ended["node_seconds"]["here/dear/on-demand"] == pytest.approx(ended["usd"], abs=0.1)


def test_the_cost_of_earlier_attempts_counts(supervise, local, expensive_machine):
    first = supervise(local, WHOLE, hardware=expensive_machine, max_cost=0.6, grace=0.1).end()
    second = supervise(local, WHOLE, hardware=expensive_machine, max_cost=0.6, grace=0.1).end()
    assert second["state"] == "out of budget" and second["tries"] == 0
    assert second["total_usd"] == pytest.approx(first["usd"] + second["usd"], abs=1e-3)


def test_an_unknown_price_is_null_with_one_warning(supervise, local, caplog):
    ended = supervise(local, "time.sleep(0.5)").end()
    assert ended["usd"] is None and ended["node_seconds"]["local/?/?"] > 0
    assert [r.message for r in caplog.records].count("no price for local/?/?") == 1


def test_a_command_is_notified_of_the_end(supervise, local, tmp_path):
    facts_file = tmp_path / "told.json"
    names = "('RUN', 'STATE', 'CAUSE', 'MESSAGE')"
    tell = tmp_path / "tell.py"
    tell.write_text(
        "import json, os\n"
        f"facts = {{n: os.environ['TRAINRIG_' + n] for n in {names}}}\n"
        f"open({str(facts_file)!r}, 'w').write(json.dumps(facts))\n"
    )
    notify = f"{sys.executable} {tell}"
    attended = supervise(local, 'end("DataError", "torn; $(id)", 2)', notify=notify)
    attended.end()
    assert json.loads(facts_file.read_text()) == {
        "RUN": attended.run.id,
        "STATE": "failed",
        "CAUSE": "data",
        "MESSAGE": "torn; $(id)",
    }
    assert attended.events("notified")[0]["exit_code"] == 0


def test_a_command_that_fails_is_on_record_and_changes_nothing(supervise, local):
    attended = supervise(local, "", notify="no-such-command-here")
    assert attended.end()["state"] == "done" and attended.code == 0
    assert "no-such-command" in attended.events("notified")[0]["problem"]


def test_secrets_reach_neither_log_nor_events_nor_the_command(
    supervise, home, monkeypatch, capfdbinary, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", "hf_canary0123456789")
    half = "sys.stdout.write('hf_canary'); sys.stdout.flush(); time.sleep(0.2)\n"
    code = half + "print('0123456789'); end('DataError', os.environ['HF_TOKEN'] + ' denied', 2)"
    tell = tmp_path / "tell.py"
    tell.write_text("import os, sys; sys.exit(os.environ['TRAINRIG_MESSAGE'])")
    attended = supervise(home, code, notify=f"{sys.executable} {tell}")
    assert attended.end()["message"] == "[masked] denied"
    assert attended.events("notified")[0]["problem"] == "[masked] denied"
    assert log_of(attended.run) == b"[masked]"
    assert b"[masked]\n" in capfdbinary.readouterr().out


def test_text_that_only_begins_like_a_secret_is_printed(supervise, local, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary0123456789")
    code = "sys.stdout.write('see hf_canary'); sys.exit(3)"
    attended = supervise(local, code, retries={"unknown": 0})
    assert attended.end()["message"] == "see hf_canary"
    assert log_of(attended.run) == b"see hf_canary"


def test_a_line_without_an_end_is_logged_in_lines(supervise, home):
    attended = supervise(home, "sys.stdout.write('o' * 200_000)")
    attended.end()
    lines = list(attended.run.open_tail().read_new_lines())
    assert [len(line) for line in lines] == [65_536] * 3 + [200_000 - 3 * 65_536]


def test_a_log_that_cannot_be_written_ends_nothing(supervise, local, tmp_path):
    run = local.create("evaluate", f"{tmp_path}/out")
    Path(run.log).mkdir(parents=True)
    attended = supervise(local, "print('x')")
    assert attended.end()["state"] == "done"


def test_an_unreadable_output_does_not_prevent_the_end_record(supervise, local, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text('{"train/loss": 1}\n"no table"\n')
    (tmp_path / "out" / "events.jsonl").write_text('{"event": "attempt_started"}\n')
    attended = supervise(local, "time.sleep(0.3)", verb="pretrain")
    assert attended.end()["state"] == "done" and attended.code == 0
