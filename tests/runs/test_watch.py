import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.runs import watch
from trainrig.runs.watch import ADDRESS, PageServer, build_live_page
from trainrig.train.run.metrics import MetricsWriter
from trainrig.train.run.run_folder import RunFolder

DRAWN = (
    *("train/loss", "train/grad_norm", "train/lr", "train/tokens"),
    *("train/tokens_per_second", "train/step_seconds"),
)


@pytest.fixture
def server() -> Iterator[PageServer]:
    pages = iter(f"page {number}" for number in range(9))
    with PageServer(lambda: next(pages)) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: PageServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(ADDRESS, server.server_address[1], timeout=60)
    headers = {"Host": host} if host else {}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = (answer.status, answer.read().decode(), answer.headers)
    connection.close()
    return found


def test_the_page_is_redrawn_for_requests_with_the_token(server: PageServer) -> None:
    path = f"/{server.token}/"
    assert server.url == f"http://{ADDRESS}:{server.server_address[1]}{path}"
    status, body, headers = ask(server, path)
    assert (status, body) == (200, "page 0")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store" and "Python" not in headers["Server"]
    assert ask(server, path)[1] == "page 1"


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/../../etc/passwd", "/TOKEN/", "/?é"])
def test_nobody_else_gets_anything(server: PageServer, path: str) -> None:
    quoted = path.replace("é", "%C3%A9")
    assert ask(server, quoted)[0] == 404


@pytest.mark.parametrize("words", [b"", b"\xff\x00garbage", b"GET /unfinished"])
def test_a_hundred_strangers_delay_no_request_and_are_disconnected(
    server: PageServer, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr(watch._Handler, "timeout", 0.3)
    with contextlib.ExitStack() as held:
        strangers = list[socket.socket]()
        for _ in range(100):
            stranger = socket.create_connection((ADDRESS, server.server_address[1]), timeout=60)
            strangers.append(held.enter_context(stranger))
            stranger.sendall(words)
        assert ask(server, f"/{server.token}/")[:2] == (200, "page 0")
        assert [stranger.recv(9) for stranger in strangers] == [b""] * 100


def test_a_name_that_resolves_to_this_machine_is_not_enough(server: PageServer) -> None:
    assert ask(server, f"/{server.token}/", host="evil.example")[0] == 404
    port = server.server_address[1]
    assert ask(server, f"/{server.token}/", host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_page_is_read_only(server: PageServer, method: str) -> None:
    assert ask(server, f"/{server.token}/", method)[0] == 501


def test_a_port_that_is_taken_is_the_users_to_change(server: PageServer) -> None:
    with pytest.raises(ConfigError, match=r"--port \d+: .* give another port"):
        PageServer(lambda: "", server.server_address[1])


def test_a_run_without_an_update_is_waited_for(tmp_path: Path) -> None:
    run = tmp_path / "<b>"
    for message in ("no such folder", "no run.toml"):
        page = build_live_page(str(run))
        assert 'http-equiv="refresh" content="10"' in page
        assert message in page and "<b>" not in page
        run.mkdir(exist_ok=True)


@pytest.mark.slow
def test_a_run_in_a_bucket_has_the_page_that_it_has_on_a_disk(s3: str, tmp_path: Path) -> None:
    pages = []
    for folder in (f"{tmp_path}/run", f"{s3}/run"):
        storage.write(f"{folder}/run.toml", b'stage = "pretrain"\n[training]\nsteps = 3\n')
        RunFolder(folder).record("attempt_started", attempt=1, step=0, workers=2, why="start")
        writer = MetricsWriter(folder, attempt=1, resumed_step=0)
        for step in range(1, 4):
            writer.write(step, {name: 0.5 * step for name in DRAWN} | {"cluster/workers": 2})
        writer.close()
        page = build_live_page(folder)
        assert "3 of 3 steps; loss 1.500 nats per token" in page
        pages.append(re.findall(r"<h2.*?</h2>", page))
    assert pages[0] == pages[1] != []
