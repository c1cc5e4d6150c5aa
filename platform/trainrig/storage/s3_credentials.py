"""AWS credentials that are fetched anew when S3 says that they have expired.

boto3 renews those that name their own end (metadata service, container, role) some minutes before
it, and nothing else: a credentials file that another program rewrites is read once in the life of a
process. And where the metadata service does not answer at that moment, the request fails at once.
"""

import logging
import threading
import time
from typing import Any

from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from trainrig.storage import s3_retries

log = logging.getLogger(__name__)
LEAST_INTERVAL = 0.5  # s between two fetches
OF_ENVIRONMENT = "env"  # boto3's name of the method: variables, which no other program can change


class RenewableCredentials(Credentials):  # type: ignore[misc]
    """What boto3's own chain of providers gives, and gives again when `renew` is called."""

    def __init__(self, found: Any) -> None:
        """`found`: what the chain of providers gave at first."""
        self._found = found
        self._fetched_at = time.monotonic()
        self._lock = threading.Lock()
        super().__init__(found.access_key, found.secret_key, found.token, found.method)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the credentials to sign the next request with. boto3 asks before each.

        A provider that does not answer is asked again for as long as a request may be.
        """
        began = time.monotonic()
        attempts = 0
        while True:
            try:
                return self._found.get_frozen_credentials()
            except (BotoCoreError, RuntimeError) as problem:  # RuntimeError: they are expired still
                if time.monotonic() - began >= s3_retries.get_retry_seconds():
                    raise
                if attempts == 0:
                    log.warning("AWS credentials: not renewed (%s); trying again", problem)
            attempts += 1
            time.sleep(s3_retries.choose_pause(attempts))
            self.renew()

    @property
    def can_change(self) -> bool:
        """Whether fetching them again may give others."""
        return bool(self._found.method != OF_ENVIRONMENT)

    @property
    def expires(self) -> bool:
        """Whether they are of the kind that expires."""
        return bool(self._found.token)

    def renew(self) -> None:
        """Fetch them anew, as a process does that has just started; keep the old if none are there.

        Of threads that ask together, one fetches.
        """
        with self._lock:
            if time.monotonic() - self._fetched_at < LEAST_INTERVAL:
                return
            self._fetched_at = time.monotonic()
            try:
                found = Session().get_credentials()
            except BotoCoreError as problem:  # a file that is being rewritten, say
                log.debug("AWS credentials: not fetched: %s", problem)
                return
            if found is not None:
                self._found = found


class _Provider:
    """Stands in boto3's session in the place of its chain of providers."""

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
