"""Ed25519 signatures of certificates, made and verified by `ssh-keygen -Y` of OpenSSH 8.2 or later.

The key is one of SSH, so people who check a signature can use the public key that they know, such
as the signer's at a code host. A passphrase is asked for by `ssh-keygen`, or by the agent.
"""

import subprocess
import tempfile
from pathlib import Path

from trainrig.errors import ConfigError, DataError

PURPOSE = "trainrig-forget"  # namespace: a signature for another purpose does not count
SIGNER = "signer"  # name of the key in the list of keys that verify
KIND = "(ED25519)"  # end of the line that `ssh-keygen -l` prints for such a key


def check_key(path: str) -> str:
    """Return the fingerprint of the Ed25519 key in the file `path`, private or public.

    Raises ConfigError if the file does not hold exactly one such key.
    """
    done = _call("-l", "-f", path)
    lines = done.stdout.strip().splitlines()
    if done.returncode or len(lines) != 1 or not lines[0].endswith(KIND):
        found = "; ".join(lines) or "no key"
        raise ConfigError(
            f"--key {path}: needs one Ed25519 key of SSH, but holds {found}; make one by "
            "`ssh-keygen -t ed25519 -f FILE`"
        )
    return lines[0].split()[1]


def sign(data: bytes, key: str) -> bytes:
    """Return the signature of `data` by the private key in the file `key`.

    Raises ConfigError if `ssh-keygen` refuses the key.
    """
    check_key(key)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "data")
        file.write_bytes(data)
        done = _call("-Y", "sign", "-f", key, "-n", PURPOSE, str(file))
        if done.returncode:
            raise ConfigError(
                f"--key {key}: ssh-keygen did not sign ({_find_reason(done)}); name a private key "
                "that only you can read, or the public key of one that ssh-agent holds"
            )
        return file.with_suffix(".sig").read_bytes()


def verify_signature(data: bytes, signature: bytes, key: str | None) -> str:
    """Verify a signature of `data`; return the fingerprint of the key that made it.

    `key`: file with the public key that must have made it; None: any key. Raises DataError if the
    signature is not of `data`, or not by that key.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "data.sig")
        file.write_bytes(signature)
        arguments = ["-n", PURPOSE, "-s", str(file)]
        if key is None:
            done = _call("-Y", "check-novalidate", *arguments, data=data)
        else:
            check_key(key)
            public = _read_public(key)
            signers = Path(folder, "signers")
            signers.write_text(f"{SIGNER} {public}", encoding="utf-8")
            known = ["-f", str(signers), "-I", SIGNER]
            done = _call("-Y", "verify", *known, *arguments, data=data)
    if done.returncode:
        whose = "" if key is None else f" by the key {key}"
        raise DataError(f"the signature is not of this certificate{whose}; restore both files")
    return str(done.stdout.split()[-1])


def _read_public(key: str) -> str:
    """Return the public key of a private or public key file; raise ConfigError if it is locked."""
    text = Path(key).read_text(encoding="utf-8", errors="replace")
    if "PRIVATE KEY" not in text:
        return text.strip()
    done = _call("-y", "-f", key)
    if done.returncode:
        raise ConfigError(
            f"--key {key}: ssh-keygen cannot read this private key ({_find_reason(done)}); name "
            "the file of its public key"
        )
    return done.stdout


def _find_reason(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line that a failed call printed."""
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _call(*arguments: str, data: bytes = b"") -> "subprocess.CompletedProcess[str]":
    """Call `ssh-keygen` with `data` as its input. Raises ConfigError if it is not installed."""
    try:
        done = subprocess.run(["ssh-keygen", *arguments], input=data, capture_output=True)
    except FileNotFoundError:
        raise ConfigError(
            "forget --key: ssh-keygen is not installed; install OpenSSH's client"
        ) from None
    return subprocess.CompletedProcess(
        done.args,
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )
