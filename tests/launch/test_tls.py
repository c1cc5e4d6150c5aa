"""Ray's own traffic under TLS, which needs four variables and a certificate for each machine."""

import datetime
import ipaddress
import os
import subprocess
import sys

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.random_pages import make_lines

from trainrig.ray_runtime.ray_session import TOKEN

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]

NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
# A stage of a few splits on a separate Ray, which then waits to be inspected.
STAGE = """
import sys
from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.filters.filters import Length

if __name__ == "__main__":
    source = CurationSource(name="web", paths=(sys.argv[1],), filters=(Length(),))
    made = curate(Curation(output=sys.argv[2], workers=1, sources=(source,)))
    import ray
    print(made.content, ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


def write_certificate(folder, name, issuer=None):
    """Write a certificate and its key; it is self-signed if there is no `issuer`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.crt").write_bytes(made.public_bytes(pem))
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, *form))
    return made, key


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Make a folder with an authority's certificate, and one that it signed for this machine."""
    folder = tmp_path_factory.mktemp("tls")
    authority = write_certificate(folder, "ca")
    write_certificate(folder, "node", authority)
    return folder


def call_control_store(port, credentials):
    """Return the status of a call to the control store with the right token."""
    token = TOKEN.expanduser().read_text().strip()
    if credentials is None:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    else:
        channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials)
    with channel:
        call = channel.unary_unary(NODES)
        try:
            call(b"", metadata=[("authorization", f"Bearer {token}")], timeout=60)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_a_stage_runs_under_tls_and_clients_without_a_certificate_are_refused(tls, tmp_path):
    (tmp_path / "pages.jsonl").write_bytes(make_lines(30))
    (tmp_path / "stage.py").write_text(STAGE)
    names = {"CA_CERT": "ca.crt", "SERVER_CERT": "node.crt", "SERVER_KEY": "node.key"}
    variables = {f"RAY_TLS_{name}": str(tls / file) for name, file in names.items()}
    environment = {**os.environ, "RAY_USE_TLS": "1", **variables}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "stage.py", str(tmp_path / "pages.jsonl"), str(tmp_path / "out")]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()[-2000:]
        content, address = line.split()
        port = int(address.rpartition(":")[2])
        authority, ours, key = ((tls / f).read_bytes() for f in ("ca.crt", "node.crt", "node.key"))
        assert call_control_store(port, grpc.ssl_channel_credentials(authority, key, ours)) == (
            grpc.StatusCode.OK
        )
        refused = grpc.StatusCode.UNAVAILABLE  # refused before the token is read
        assert call_control_store(port, grpc.ssl_channel_credentials(authority)) == refused
        assert call_control_store(port, None) == refused
        strangers = tmp_path / "strangers"
        strangers.mkdir()
        write_certificate(strangers, "node", write_certificate(strangers, "ca"))
        theirs = [(strangers / f).read_bytes() for f in ("node.key", "node.crt")]
        assert call_control_store(port, grpc.ssl_channel_credentials(authority, *theirs)) == refused
        process.stdin.close()
        assert process.wait(60) == 0
    assert len(content) == 64
