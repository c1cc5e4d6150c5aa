"""Requests that work on many files of a bucket takes, counted by a proxy."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from support.s3_proxy import Proxy

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.storage import concurrent_requests, retries, s3_objects


def fill(folder: str, count: int) -> list[str]:
    """Put `count` objects into `folder` without requests; return their locations."""
    bucket, _, key = folder.removeprefix("s3://").partition("/")
    names = [f"{number:05d}" for number in range(count)]
    for name in names:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, f"{key}/{name}", name.encode())
    return [f"{folder}/{name}" for name in names]


def test_a_folder_is_deleted_by_one_request_for_a_thousand_files(proxy: Proxy, s3: str) -> None:
    fill(f"{s3}/old", 1_100)
    fill(f"{s3}/old2", 1)
    storage.delete_folder(f"{s3}/old")
    assert proxy.count() == {"DELETE many": 2, "LIST": 2}
    assert storage.list_files(s3) == [f"{s3}/old2/00000"]


def test_files_are_read_and_deleted_side_by_side(proxy: Proxy, s3: str) -> None:
    paths = fill(f"{s3}/many", 40)
    proxy.delay = 0.02
    assert list(storage.read_files(paths)) == [path[-5:].encode() for path in paths]
    assert 4 < proxy.most_at_once <= concurrent_requests.THREADS
    assert proxy.count() == {"GET": 40}
    storage.delete_files(paths[::2])
    assert proxy.count() == {"DELETE many": 1}
    assert storage.list_files(s3) == paths[1::2]


def test_sizes_and_content_keys_of_a_folder_take_one_listing(proxy: Proxy, s3: str) -> None:
    paths = fill(f"{s3}/many", 40)
    fill(f"{s3}/many/below", 1)
    few = fill(f"{s3}/few", 3)
    assert storage.measure_sizes(paths) == dict.fromkeys(paths, 5)
    assert proxy.count() == {"LIST": 1}
    keys = storage.compute_content_keys([*paths[10:], *few])
    assert proxy.count() == {"HEAD": 3, "LIST": 1}
    assert keys == [storage.compute_content_key(path) for path in [*paths[10:], *few]]


def test_a_listing_is_given_up_where_it_costs_more_than_it_saves(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_objects, "PAGE", 10)
    paths = fill(f"{s3}/many", 100)
    assert list(storage.measure_sizes(paths[5::19])) == paths[5::19]
    assert proxy.count() == {"HEAD": 4, "LIST": 1}


def test_the_first_file_is_found_without_listing_the_others(proxy: Proxy, s3: str) -> None:
    paths = fill(f"{s3}/many", 40)
    assert storage.find_first(f"{s3}/many") == paths[0]
    assert proxy.count() == {"LIST": 1}


def test_requests_side_by_side_are_brief_in_a_brief_block(s3: str) -> None:
    paths = fill(f"{s3}/many", 3)
    with storage.briefly():
        seconds = set(storage.map_files(lambda path: retries.get_retry_seconds(), paths))
    assert seconds == {retries.BRIEF_SECONDS}


def answer_with(
    monkeypatch: pytest.MonkeyPatch, refuse: Callable[[str], str | None]
) -> list[list[str]]:
    """Have S3 leave the keys for which `refuse` returns a code; return the keys of each request."""
    client = s3_objects.get_client()
    delete_objects = client.delete_objects
    sent: list[list[str]] = []

    def answer(Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        keys = [entry["Key"] for entry in Delete["Objects"]]
        sent.append(keys)
        codes = {key: code for key in keys if (code := refuse(key))}
        taken = [{"Key": key} for key in keys if key not in codes]
        if taken:
            delete_objects(Bucket=Bucket, Delete={"Objects": taken, "Quiet": True})
        errors = [{"Key": key, "Code": code, "Message": "not now"} for key, code in codes.items()]
        return {"Errors": errors} if errors else {}

    monkeypatch.setattr(client, "delete_objects", answer)
    return sent


def test_keys_that_s3_leaves_for_now_are_sent_again(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = fill(f"{s3}/many", 6)
    left = ["many/00001", "many/00004", "many/00001"]

    def refuse(key: str) -> str | None:
        if key not in left:
            return None
        left.remove(key)
        return "InternalError"

    sent = answer_with(monkeypatch, refuse)
    storage.delete_files(paths)
    assert sent[1:] == [["many/00001", "many/00004"], ["many/00001"]]
    assert storage.list_files(s3) == []


def test_keys_that_s3_refuses_to_delete_are_named_once_the_others_are_gone(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = fill(f"{s3}/many", 6)
    sent = answer_with(
        monkeypatch,
        lambda key: {"1": "AccessDenied", "2": "NoSuchKey", "4": "AccessDenied"}.get(key[-1]),
    )
    why = re.escape("S3 did not delete the object (2 of 6 objects): AccessDenied not now")
    with pytest.raises(ClusterError, match=f"^{paths[1]}: {why}"):
        storage.delete_files(paths)
    assert len(sent) == 1
    assert storage.list_files(s3) == [paths[1], paths[2], paths[4]]


def test_keys_that_s3_leaves_for_too_long_are_given_up(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = fill(f"{s3}/many", 3)
    monkeypatch.setattr(retries, "RETRY_SECONDS", 0.05)
    sent = answer_with(monkeypatch, lambda key: "SlowDown" if key[-1] == "2" else None)
    with pytest.raises(ClusterError, match=f"^{paths[2]}: .*SlowDown"):
        storage.delete_files(paths)
    assert len(sent) > 1
    assert storage.list_files(s3) == [paths[2]]


def test_a_server_without_the_request_for_many_keys_gets_one_for_each(
    proxy: Proxy, s3: str
) -> None:
    paths = fill(f"{s3}/many", 20)
    proxy.how = "not_implemented"
    proxy.times = 1
    proxy.spoil = lambda method, path: path.endswith("?delete")
    storage.delete_files(paths)
    assert proxy.count() == {"DELETE": 20, "DELETE many": 1}
    assert storage.list_files(s3) == []


def test_a_request_for_many_keys_outlasts_a_burst_of_503(proxy: Proxy, s3: str) -> None:
    paths = fill(f"{s3}/many", 20)
    proxy.times = 3
    storage.delete_files(paths)
    assert proxy.count() == {"DELETE many": 4}
    assert storage.list_files(s3) == []


def test_a_request_for_many_keys_has_the_checksum_that_older_servers_want(s3: str) -> None:
    sent: list[dict[str, str]] = []
    client = s3_objects.get_client()

    def look(params: dict[str, Any], **_: object) -> None:
        sent.append(dict(params["headers"]))

    client.meta.events.register_last("before-call.s3.DeleteObjects", look)
    storage.delete_files(fill(f"{s3}/many", 2))
    client.meta.events.unregister("before-call.s3.DeleteObjects", look)
    assert len(sent) == 1 and len(sent[0]["Content-MD5"]) == 24
    assert storage.list_files(s3) == []
