"""Notices of a Google machine, from a server that delays answers until there is news."""

import threading
import time

import pytest
from support.waiting import PATIENCE, wait_until

from trainrig.launch.spot import preemption_notices
from trainrig.launch.spot.preemption_notices import (
    MAINTENANCE,
    PREEMPTED,
    ComputeMetadata,
    Endpoint,
    Notice,
    Unclear,
)


@pytest.fixture
def source(metadata_service, monkeypatch):
    monkeypatch.setattr(preemption_notices, "WAIT", 0.2)
    metadata_service.put(PREEMPTED, "FALSE")
    metadata_service.put(MAINTENANCE, "NONE")
    return ComputeMetadata(Endpoint.parse(metadata_service.url))


def test_a_preemption_has_thirty_seconds_from_its_first_sight(source, metadata_service):
    assert source.look() is None
    metadata_service.put(PREEMPTED, "TRUE")
    before = time.time()
    seen = source.look()
    assert seen.what == "preemption"
    assert before + 30 <= seen.deadline <= time.time() + 30
    assert source.look() == seen


def test_the_question_waits_for_the_answer(source, metadata_service, monkeypatch):
    monkeypatch.setattr(preemption_notices, "WAIT", 60)
    source.look()
    found = []
    thread = threading.Thread(target=lambda: found.append(source.look()))
    thread.start()
    waits = f"GET {PREEMPTED}?wait_for_change=true&timeout_sec=60"
    wait_until(lambda: any(asked.startswith(waits) for asked in metadata_service.asked))
    metadata_service.put(PREEMPTED, "TRUE")
    thread.join(PATIENCE)
    assert found[0].what == "preemption"


def test_maintenance_that_ends_a_machine_is_a_notice_and_a_migration_a_warning(
    source, metadata_service
):
    metadata_service.put(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    assert source.look() == Notice("MIGRATE_ON_HOST_MAINTENANCE", None)
    metadata_service.put(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    seen = source.look()
    assert seen.what == "TERMINATE_ON_HOST_MAINTENANCE"
    assert 0 < seen.deadline - time.time() <= 60


@pytest.mark.parametrize("said", ["", "true?", "<html>", 404, 500, 503])
def test_an_unknown_answer_is_unclear_and_never_a_notice(source, metadata_service, said):
    metadata_service.put(PREEMPTED, said)
    with pytest.raises(Unclear):
        source.look()
    metadata_service.put(PREEMPTED, "FALSE")
    assert source.look() is None


def test_a_server_that_is_not_google_s_is_not_believed(metadata_service):
    metadata_service.there["/computeMetadata/v1/instance/preempted"] = "TRUE"
    source = ComputeMetadata(Endpoint.parse(metadata_service.url))
    metadata_service.refuses = 200
    with pytest.raises(Unclear, match="not from Google"):
        source.look()
