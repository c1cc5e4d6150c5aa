"""Credentials that expire while a process lives, with a proxy that knows which are valid."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support import metadata_service
from support.waiting import wait_until

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.storage import s3_credentials, s3_objects

OLD = "AKIAOLD"
NEW = "AKIANEW"


@pytest.fixture
def expire(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return `expire("ExpiredToken")`: from then on the server accepts only the credentials NEW."""
    monkeypatch.setattr(s3_credentials, "LEAST_INTERVAL", 0.0)
    handler = proxy.handler
    proxy.refused = []

    def start(code: str) -> None:
        do = handler.do_GET

        def do_if_valid(self: Any) -> None:
            if NEW in self.headers.get("Authorization", ""):
                return do(self)
            proxy.refused.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            text = f"<Error><Code>{code}</Code><Message>over</Message></Error>".encode()
            return self.answer(400, {"Content-Type": "application/xml"}, text)

        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            setattr(handler, f"do_{method}", do_if_valid)

    return start


@pytest.fixture
def credentials_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return `credentials_file(NEW)`, which writes credentials as a user's refresh program does."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def write(key: str) -> None:
        lines = [f"aws_access_key_id = {key}", "aws_secret_access_key = s", "aws_session_token = t"]
        path.write_text("\n".join(["[default]", *lines]))

    write(OLD)
    s3_objects.get_client.cache_clear()
    return write


ACTS: dict[str, Callable[[str], object]] = {
    "write": lambda path: storage.write(path, b"b"),
    "read": storage.read,
    "exists": storage.exists,  # a HEAD request, whose answer has no body
    "list": lambda path: storage.list_files(path.rpartition("/")[0]),
    "create": lambda path: storage.create(f"{path}.new", b"c"),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "InvalidToken"])
def test_a_credentials_file_that_was_rewritten_is_read_again(
    s3: str, expire: Any, credentials_file: Any, proxy: Any, act: str, code: str
) -> None:
    storage.write(f"{s3}/file", b"a")
    expire(code)
    credentials_file(NEW)
    assert ACTS[act](f"{s3}/file") in (None, b"a", True, [f"{s3}/file"])
    # Boto3 also asks for the bucket's region.
    assert len(proxy.refused) == (2 if act == "exists" else 1)


def test_a_file_that_is_rewritten_a_moment_later_is_waited_for(
    s3: str, expire: Any, credentials_file: Any, proxy: Any
) -> None:
    storage.write(f"{s3}/file", b"a")
    expire("ExpiredToken")

    def rewrite() -> None:
        wait_until(lambda: len(proxy.refused) >= 3)
        credentials_file(NEW)

    later = threading.Thread(target=rewrite)
    later.start()
    assert storage.read(f"{s3}/file") == b"a"
    later.join()


@pytest.mark.slow
def test_credentials_without_renewal_are_named(s3: str, expire: Any, credentials_file: Any) -> None:
    storage.write(f"{s3}/file", b"a")
    expire("ExpiredToken")
    with pytest.raises(ClusterError, match=r"/file.*AWS credentials"):
        storage.read(f"{s3}/file")


def test_environment_credentials_are_not_waited_for(
    s3: str, expire: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write(f"{s3}/file", b"a")
    expire("ExpiredToken")
    with pytest.raises(ClusterError, match="have expired"):
        storage.read(f"{s3}/file")
    assert len(proxy.refused) == 1


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a container's credentials endpoint on loopback, which first returns OLD."""
    service = metadata_service.MetadataService()

    def answer(self: Any) -> None:  # requests carry no token of the machine's own service
        self._give(service.there.get(self.path, 404))

    handler = type("Handler", (metadata_service.Handler,), {"service": service, "do_GET": answer})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/credentials"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    s3_objects.get_client.cache_clear()
    yield service
    server.shutdown()
    server.server_close()


def give(key: str, minutes: float) -> str:
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60 * minutes))
    given = {"AccessKeyId": key, "SecretAccessKey": "s", "Token": "t", "Expiration": until}
    return json.dumps(given)


def test_a_container_is_asked_again_before_the_end_that_it_names(
    s3: str, expire: Any, container: Any, proxy: Any
) -> None:
    """S3 may reject credentials earlier, for example after a change of the role."""
    container.put("/credentials", give(OLD, minutes=60))
    storage.write(f"{s3}/file", b"a")
    expire("ExpiredToken")
    container.put("/credentials", give(NEW, minutes=60))
    assert storage.read(f"{s3}/file") == b"a"
    assert len(proxy.refused) == 1


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer_when_they_end_is_asked_again(
    s3: str, container: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # This near to the end, boto3 renews before each request.
    container.put("/credentials", give(OLD, minutes=5))
    storage.write(f"{s3}/file", b"a")
    container.put("/credentials", 500)

    def recover() -> None:
        wait_until(lambda: "AWS credentials: renewal failed" in caplog.text)
        container.put("/credentials", give(NEW, minutes=60))

    later = threading.Thread(target=recover)
    later.start()
    assert storage.read(f"{s3}/file") == b"a"
    later.join()
