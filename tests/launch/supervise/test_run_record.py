import json
import threading
import time

import pytest

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.launch.supervise import run_record as records
from trainrig.launch.supervise.run_record import Home, run_id
from trainrig.processes.append_log import LINE_LIMIT


@pytest.fixture(params=["disk", "bucket"])
def home(request, tmp_path):
    """Return a home for records, on disk or in a bucket."""
    return Home.choose(str(tmp_path) if request.param == "disk" else request.getfixturevalue("s3"))


@pytest.fixture
def run(home):
    return home.create("curate", "/data/out")


def attempt(run, **limits):
    return run.take_attempt("job-{attempt}", "http://head", "here", limits)


def advance_clock(monkeypatch, seconds):
    """Advance the clock by `seconds`."""
    now = time.time
    monkeypatch.setattr(records.time, "time", lambda: now() + seconds)


def test_the_id_follows_from_verb_and_output_however_the_output_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_id("curate", "out") == run_id("curate", f"{tmp_path}/out")
    assert run_id("curate", "out") != run_id("tokenize", "out")
    assert run_id("curate", "a/out") != run_id("curate", "b/out")
    assert records.ID.fullmatch(run_id("curate", "s3://bucket/my runs/größe 7"))


def test_records_in_a_bucket_are_read_side_by_side_and_once(proxy, s3):
    home = Home.choose(s3)
    for number in range(6):
        home.create("curate", f"/data/{number}")
    newest = [attempt(home.list()[0]) for _ in range(6)][-1]
    proxy.delay = 0.02
    proxy.count()
    assert len(home.list()) == 6
    assert proxy.most_at_once > 1
    assert proxy.count() == {"HEAD": 6, "LIST": 1}
    assert home.list()[0].find_request_time(newest) <= newest.submitted_at
    # Of each attempt its record is read once, and of the log the list of its parts.
    assert proxy.count() == {"GET": 5 + 1, "HEAD": 6, "LIST": 3}


def test_the_home_is_from_the_option_the_variable_or_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("TRAINRIG_HOME", raising=False)
    assert Home.choose().path == f"{tmp_path}/state/trainrig"
    monkeypatch.setenv("TRAINRIG_HOME", str(tmp_path / "home"))
    assert Home.choose().path == f"{tmp_path}/home"
    assert Home.choose("s3://bucket/home/").path == "s3://bucket/home"


def test_a_run_that_is_created_again_is_the_same_run(home, run):
    before = run.read_description()
    again = home.create("curate", "/data/out")
    assert (again, again.read_description()) == (run, before)
    assert home.list() == [run] and home.open(run.id) == run
    assert (before["verb"], before["output"]) == ("curate", "/data/out")


@pytest.mark.parametrize("name", ["curate-out", "..", "../runs/x", "a/b", ""])
def test_a_missing_run_is_named_with_the_nearest(home, run, name):
    with pytest.raises(ConfigError, match="no run") as refused:
        home.open(name)
    assert run.id in str(refused.value)


def test_concurrent_attempts_have_different_numbers(run):
    threads = [threading.Thread(target=attempt, args=(run,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = run.read_attempts()
    assert [started.number for started in taken] == list(
        range(1, 9)
    ) and run.find_newest_attempt() == 8
    assert {started.submission_id for started in taken} == {f"job-{n}" for n in range(1, 9)}
    assert run.read_attempt(3) == taken[2]


def test_states_follow_from_the_record(run, monkeypatch):
    assert run.read_state() == "queued"
    attempt(run)
    assert run.read_state() == "queued"
    run.record("started", 1)
    assert run.read_state() == "running"
    run.write_heartbeat(1, "waiting")
    assert run.read_state() == "waiting"
    run.write_heartbeat(1, "running")
    assert run.read_state() == "running"
    run.request_stop()
    assert run.read_state() == "stopping"
    run.record("ended", 1, state="stopped", cause="stopped")
    assert run.read_state() == "stopped" and not run.read_status().alive
    attempt(run)
    assert run.read_state() == "queued" and run.read_status().heartbeat == {}
    run.record("ended", 1, state="failed")  # belongs to an attempt that no longer counts
    assert run.read_state() == "queued"
    run.write_heartbeat(2, "running")
    assert run.read_state() == "running", "the request to stop was for the attempt before"


def test_an_attempt_without_heartbeats_is_lost(run, monkeypatch):
    attempt(run)
    run.write_heartbeat(1, "running")
    advance_clock(monkeypatch, 59)
    assert run.read_state() == "running"
    advance_clock(monkeypatch, 3)
    assert run.read_state() == "lost"
    run.write_heartbeat(1, "running")
    assert run.read_state() == "running"


def test_records_by_others_are_no_heartbeat(run, monkeypatch):
    attempt(run)
    run.record("started", 1)
    run.write_heartbeat(1, "running")
    advance_clock(monkeypatch, 62)
    run.request_stop()
    for event in ("spent", "resubmitted"):
        run.record(event, 1)
    run.begin_anew()
    assert run.read_state() == "lost"
    run.record("retried", 1)
    assert run.read_state() == "stopping"


def test_an_attempt_that_never_begins_is_lost_once_it_has_been_pending_too_long(run, monkeypatch):
    attempt(run, pending=20.0)
    advance_clock(monkeypatch, 19)
    assert run.read_state() == "queued"
    advance_clock(monkeypatch, 2)
    assert run.read_state() == "lost"


def test_a_stop_request_covers_attempts_up_to_the_newest(run):
    attempt(run)
    assert not run.stop_requested(1)
    run.request_stop()
    assert run.stop_requested(1) and not run.stop_requested(2)
    run.clear_stop(1)
    assert not run.stop_requested(1)


def test_a_request_is_removed_only_by_the_end_of_its_attempt_or_a_later_one(run):
    attempt(run)
    attempt(run)
    run.request_stop()
    run.clear_stop(1)
    assert run.stop_requested(2), "the end of an attempt before it leaves it alone"
    run.clear_stop(3)
    assert not run.stop_requested(1)


def test_an_automatic_attempt_counts_from_the_first(run, monkeypatch):
    first = attempt(run)
    advance_clock(monkeypatch, 100)
    second = attempt(run)
    third = attempt(run)
    assert run.find_request_time(first) == run.find_request_time(third) == first.submitted_at
    assert run.find_request_time(second) == first.submitted_at
    run.record("ended", 3, state="failed")
    assert run.find_request_time(fourth := attempt(run)) == fourth.submitted_at
    run.begin_anew()  # simulates a lost fourth attempt
    fifth = attempt(run)
    sixth = attempt(run)
    assert run.find_request_time(fifth) == run.find_request_time(sixth) == fifth.submitted_at


def test_a_file_made_by_hand_asks_as_well(run):
    storage.write(storage.join(run.path, "stop"), b"")
    assert run.stop_requested(7)
    run.clear_stop(7)
    assert not run.stop_requested(7)


def test_events_are_read_in_order_without_torn_ones(run):
    for number in range(5):
        run.record("retried", 1, seconds=number)
    run.record("retried", 2, seconds=9)
    if not run.path.startswith("s3://"):
        with open(f"{run.path}/events.jsonl", "a") as file:  # noqa: PTH123
            file.write('{"event": "ended", "atte')
        run.record("started", 3)
    assert [event["seconds"] for event in run.read_events(1)] == [0, 1, 2, 3, 4]
    assert len(list(run.read_events(2))) == 1


@pytest.mark.parametrize("letter", ["x", "é", "\0", "\ud800", "𝔘"])
def test_an_event_is_one_line_of_any_length(run, letter):
    run.record("ended", 1, state="failed", message=letter * 9_000, other="fine")
    (event,) = run.read_events()
    assert event["other"] == "fine" and event["message"].endswith("…")
    assert len(json.dumps(event, ensure_ascii=False).encode(errors="replace")) < LINE_LIMIT


def test_secrets_of_this_process_do_not_reach_events(run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary0123")
    run.record("ended", 1, message="401 for hf_canary0123", deep={"list": ["hf_canary0123"]})
    (event,) = run.read_events()
    assert event["message"] == "401 for [masked]" and event["deep"] == {"list": ["[masked]"]}


def test_the_log_is_read_back_in_the_order_of_attempts(run):
    tail = run.open_tail()
    for number in (1, 2):
        appender = run.open_log(number)
        appender.write(b"attempt %d\nits second line\n" % number)
        appender.close()
    again = run.open_log(2, 1)
    again.write(b"the last\n")
    again.close()
    expected = [b"attempt 1", b"its second line", b"attempt 2", b"its second line", b"the last"]
    assert list(tail.read_new_lines()) == expected
    assert list(tail.read_new_lines()) == []


def test_a_run_is_found_by_the_beginning_of_its_id(tmp_path):
    home = Home(str(tmp_path))
    model = home.create("pretrain", "/x/model")
    tokens = home.create("tokenize", "/x/tokens")
    other = home.create("pretrain", "/y/model")
    assert home.find(model.id) == model
    assert home.find("tok") == tokens
    with pytest.raises(ConfigError) as refused:
        home.find("pretrain-m")
    assert str(refused.value) == (
        f"{tmp_path}: several runs begin with 'pretrain-m': "
        f"{', '.join(sorted([model.id, other.id]))}; give more characters of the id"
    )
    with pytest.raises(ConfigError, match=r"no run 'tokenise-tokens'.*'tokenize-"):
        home.find("tokenise-tokens")
    with pytest.raises(ConfigError):
        home.find("")
    with pytest.raises(ConfigError):  # programs must name a run in full
        home.open("tok")


def test_a_home_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match=r"home.*--home"):
        Home(str(tmp_path / "home")).list()
