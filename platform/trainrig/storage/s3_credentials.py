"""AWS credentials that are fetched again when S3 reports that they have expired.

boto3 renews only credentials with a known expiry time (metadata service, container, role), some
minutes before that time. A credentials file that another program rewrites is read once per process.
And if the metadata service does not answer at the time of renewal, the request fails at once.
"""

import logging
import threading
import time
from typing import Any

from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from trainrig.storage import retries

log = logging.getLogger(__name__)
LEAST_INTERVAL = 0.5  # s between two fetches
# boto3's name for credentials from environment variables, which no other program can change.
OF_ENVIRONMENT = "env"


class RenewableCredentials(Credentials):  # type: ignore[misc]
    """Credentials of boto3's provider chain, which `renew` fetches from the chain again."""

    def __init__(self, found: Any) -> None:
        """Wrap `found`, the credentials that boto3's provider chain returned first."""
        self._found = found
        self._fetched_at = time.monotonic()
        self._lock = threading.Lock()
        super().__init__(found.access_key, found.secret_key, found.token, found.method)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the credentials that sign the next request; boto3 calls this for every request.

        A provider that does not answer is retried for as long as a request may be retried.
        """
        began = time.monotonic()
        attempts = 0
        while True:
            try:
                return self._found.get_frozen_credentials()
            except (BotoCoreError, RuntimeError) as problem:  # RuntimeError means still expired
                if time.monotonic() - began >= retries.get_retry_seconds():
                    raise
                if attempts == 0:
                    log.warning("AWS credentials: renewal failed (%s); trying again", problem)
            attempts += 1
            time.sleep(retries.choose_pause(attempts))
            self.renew()

    @property
    def can_change(self) -> bool:
        """True if fetching the credentials again may return different ones."""
        return bool(self._found.method != OF_ENVIRONMENT)

    @property
    def expires(self) -> bool:
        """True if the credentials are temporary, which means that they have a session token."""
        return bool(self._found.token)

    def renew(self) -> None:
        """Fetch the credentials again as a new process would; keep the old ones if none are found.

        If several threads call this together, only one of them fetches.
        """
        with self._lock:
            if time.monotonic() - self._fetched_at < LEAST_INTERVAL:
                return
            self._fetched_at = time.monotonic()
            try:
                found = Session().get_credentials()
            except BotoCoreError as problem:  # another program may be rewriting the file
                log.debug("AWS credentials: could not be fetched: %s", problem)
                return
            if found is not None:
                self._found = found


class _Provider:
    """Replacement for the provider chain of a boto3 session, which makes credentials renewable."""

    def __init__(self, session: Session) -> None:
        self._chain = session.get_component("credential_provider")

    def load_credentials(self) -> RenewableCredentials | None:
        found = self._chain.load_credentials()
        return None if found is None else RenewableCredentials(found)


def make_session() -> Session:
    """Return a botocore session whose credentials are renewable."""
    session = Session()
    session.register_component("credential_provider", _Provider(session))
    return session
