"""Requests to the metadata service of a cloud machine.

No proxy is used, whatever the environment says: the answers are about this machine.
"""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainrig.errors import ConfigError
from trainrig.launch.spot.notices import Unclear

TIMEOUT = 1.0  # seconds for each byte to arrive; the service answers in about a millisecond
LARGEST = 64 * 2**10  # bytes of an answer to read at most


@dataclass(frozen=True)
class Answer:
    """Answer of the service."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Endpoint:
    """Address of a metadata service."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Parse a URL such as `http://169.254.169.254`. Raises ConfigError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port or parts.path.strip("/"):
            raise ConfigError(
                f"{url}: not the address of a metadata service; write http://HOST or "
                "http://HOST:PORT"
            )
        return cls(parts.hostname, port)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], timeout: float = TIMEOUT
    ) -> Answer:
        """Send one request and return the answer. Raises Unclear if none comes in time."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read(LARGEST))
        except (OSError, http.client.HTTPException) as problem:
            what = str(problem) or type(problem).__name__
            raise Unclear(f"{self.host}:{self.port} does not answer: {what}") from None
        finally:
            connection.close()
