"""Notices of a spot instance, from a server that gives all of Amazon's answers."""

import json
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.launch.spot import preemption_notices
from trainrig.launch.spot.preemption_notices import (
    INTERRUPTION,
    REBALANCE,
    TOKEN,
    Endpoint,
    InstanceMetadata,
    Notice,
    Unclear,
    read_interruption,
    read_rebalance,
)

GOES = '{"action": "terminate", "time": "2026-11-22T08:22:00Z"}'
WHEN = datetime(2026, 11, 22, 8, 22, tzinfo=UTC).timestamp()
NAMES = st.sampled_from(["action", "time", "noticeTime"])
VALUES = st.none() | st.booleans() | st.floats() | st.text(max_size=30) | st.datetimes().map(str)
JSON = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(NAMES, VALUES)


@pytest.fixture
def source(metadata_service):
    return InstanceMetadata(Endpoint.parse(metadata_service.url))


def test_without_a_notice_nothing_is_reported(source):
    assert source.look() is None


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_an_interruption_is_a_notice_with_its_time(source, metadata_service, action):
    metadata_service.put(INTERRUPTION, GOES.replace("terminate", action))
    assert source.look() == Notice(f"spot interruption: {action}", WHEN)


def test_a_rebalance_recommendation_names_no_time_at_which_the_machine_goes(
    source, metadata_service
):
    metadata_service.put(REBALANCE, '{"noticeTime": "2026-11-22T08:20:00Z"}')
    assert source.look() == Notice("rebalance recommendation of 2026-11-22T08:20:00Z", None)
    metadata_service.put(INTERRUPTION, GOES)  # both are present in the worst case
    assert source.look() == Notice("spot interruption: terminate", WHEN)


def test_a_token_is_used_until_it_expires_and_then_renewed(source, metadata_service):
    source.look()
    source.look()
    assert metadata_service.asked.count(f"PUT {TOKEN}") == 1
    metadata_service.put(INTERRUPTION, GOES)
    metadata_service.forget_tokens()
    assert source.look() is not None
    assert metadata_service.asked.count(f"PUT {TOKEN}") == 2


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{",
        "null",
        "[]",
        "<html>Log in to the network</html>",
        "{}",
        '{"action": "terminate"}',
        '{"time": "2026-11-22T08:22:00Z"}',
        '{"action": "terminate", "time": "soon"}',
        '{"action": "terminate", "time": 1795335720}',
        '{"action": "terminate", "time": "2026-11-22T08:22:00"}',
        '{"action": "a\\nb", "time": "2026-11-22T08:22:00Z"}',
        500,
        503,
        403,
        204,
        301,
    ],
)
def test_an_unknown_answer_is_unclear_and_never_a_notice(source, metadata_service, said):
    metadata_service.put(INTERRUPTION, said)
    with pytest.raises(Unclear):
        source.look()
    metadata_service.put(INTERRUPTION, 404)
    assert source.look() is None
    metadata_service.put(REBALANCE, said if said != '{"time": "2026-11-22T08:22:00Z"}' else "{}")
    with pytest.raises(Unclear):
        source.look()


@given(st.binary(max_size=50) | JSON.map(json.dumps).map(str.encode))
def test_any_answer_is_a_notice_or_unclear(said):
    for read in (read_interruption, read_rebalance):
        with suppress(Unclear):
            assert isinstance(read(said), Notice)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_service_that_gives_no_token_is_unclear_and_found_again_later(
    source, metadata_service, status
):
    metadata_service.put(INTERRUPTION, GOES)
    metadata_service.refuses = status
    with pytest.raises(Unclear):
        source.look()
    metadata_service.refuses = None
    assert source.look() is not None


def test_a_refused_token_is_not_requested_endlessly(source, metadata_service):
    metadata_service.put(INTERRUPTION, 401)
    with pytest.raises(Unclear, match="401"):
        source.look()
    assert metadata_service.asked.count(f"PUT {TOKEN}") == 1


def test_a_service_that_keeps_silent_is_given_up_in_time(source, metadata_service, monkeypatch):
    metadata_service.slow = 0.3
    with monkeypatch.context() as patch, pytest.raises(Unclear, match="timed out"):
        patch.setattr(preemption_notices.Endpoint.ask, "__defaults__", (0.05,))
        source.look()
    metadata_service.slow = 0.0
    assert source.look() is None


def test_a_missing_service_is_unclear():
    with pytest.raises(Unclear, match="does not answer"):
        InstanceMetadata(Endpoint.parse("http://127.0.0.1:1")).look()


def test_no_proxy_is_used(source, metadata_service, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert source.look() is None
