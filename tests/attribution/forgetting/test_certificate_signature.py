import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainrig.attribution.forgetting import certificate_signature
from trainrig.attribution.forgetting.certificate_signature import check_key, sign, verify_signature
from trainrig.attribution.forgetting.forget_stage import (
    CERTIFICATE,
    SIGNATURE,
    Certificate,
    _check_signature,
    _write_certificate,
)
from trainrig.cli import app
from trainrig.errors import ConfigError, DataError

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed"
)


def make_key(path: Path, kind: str = "ed25519") -> str:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "a signer", "-f", str(path)]
    subprocess.run(command, check=True)
    return str(path)


def make_certificate(**values: Any) -> Certificate:
    """Return a certificate with these values alone."""
    return Certificate.model_construct(**values)


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make_key(tmp_path / "key")


def test_a_signature_holds_for_its_data_and_its_key_alone(key: str, tmp_path: Path) -> None:
    signature = sign(b"data", key)
    expected = check_key(key)
    assert expected.startswith("SHA256:")
    for public in (None, key, f"{key}.pub"):
        assert verify_signature(b"data", signature, public) == expected
    with pytest.raises(DataError, match="is not of this certificate; restore"):
        verify_signature(b"date", signature, None)
    other = make_key(tmp_path / "other")
    with pytest.raises(DataError, match=r"is not of this certificate by the key .*other\.pub"):
        verify_signature(b"data", signature, f"{other}.pub")


def test_a_signature_for_another_purpose_does_not_count(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_signature, "PURPOSE", "file")
    signature = sign(b"data", key)
    monkeypatch.undo()
    with pytest.raises(DataError, match="is not of this certificate"):
        verify_signature(b"data", signature, f"{key}.pub")


def test_another_kind_of_key_is_refused_before_training(key: str, tmp_path: Path) -> None:
    other = make_key(tmp_path / "rsa", "rsa")
    nothing = tmp_path / "text"
    nothing.write_text("no key")
    asked = ["forget", "no-run", "--urls", "pages.txt", "--out", "new", "--key"]
    two = tmp_path / "two"
    two.write_text(Path(f"{key}.pub").read_text() * 2)
    for path in (other, str(nothing), str(tmp_path / "none"), str(two)):
        with pytest.raises(ConfigError, match="needs one Ed25519 key of SSH, but holds"):
            CliRunner().invoke(app, [*asked, path], catch_exceptions=False)
    with pytest.raises(ConfigError, match="--plan writes no certificate to sign"):
        CliRunner().invoke(app, [*asked, key, "--plan"], catch_exceptions=False)


def test_a_key_that_cannot_sign_is_refused_before_training(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    public = shutil.copy(f"{key}.pub", tmp_path / "alone.pub")
    asked = ["forget", "no-run", "--urls", "pages.txt", "--out", "new", "--key", str(public)]
    with pytest.raises(ConfigError, match=r"did not sign \(.*\); name a private key that only you"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_a_private_key_that_is_not_read_is_named_in_the_check(key: str) -> None:
    signature = sign(b"data", key)
    Path(key).chmod(0o644)
    with pytest.raises(ConfigError, match=r"cannot read this private key .*; name the file of its"):
        verify_signature(b"data", signature, key)
    assert verify_signature(b"data", signature, f"{key}.pub") == check_key(key)


def test_the_check_of_a_certificate_verifies_its_signature(key: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    (tmp_path / CERTIFICATE).write_bytes(b"{}")
    assert list(_check_signature(folder, None)) == []
    with pytest.raises(DataError, match="missing, so no key signed the certificate"):
        list(_check_signature(folder, key))
    (tmp_path / SIGNATURE).write_bytes(sign(b"{}", key))
    expected = [f"{CERTIFICATE}: is signed by the key {check_key(key)}"]
    assert list(_check_signature(folder, None)) == list(_check_signature(folder, key)) == expected
    (tmp_path / CERTIFICATE).write_bytes(b"{ }")
    with pytest.raises(DataError, match=r"certificate\.json\.sig: the signature is not of this"):
        list(_check_signature(folder, None))


def test_a_new_certificate_has_no_signature_of_the_earlier_one(key: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    first = make_certificate(statement="first")
    _write_certificate(folder, first, key)
    (line,) = _check_signature(folder, f"{key}.pub")
    _write_certificate(folder, first, None)  # unchanged, so its signature still holds
    assert list(_check_signature(folder, f"{key}.pub")) == [line]
    _write_certificate(folder, make_certificate(statement="second"), None)
    assert not (tmp_path / SIGNATURE).exists()


def test_options_that_the_check_does_not_use_are_refused() -> None:
    asked = ["forget", "no-run", "--check", "--urls", "pages.txt", "--near-duplicates", "pages"]
    with pytest.raises(ConfigError, match="does not use --urls, --near-duplicates; leave it out"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="ssh-keygen is not installed; install OpenSSH"):
        check_key("key")
