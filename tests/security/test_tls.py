"""TLS of a user's own, TLS only, and clients that prove themselves by certificate."""

import asyncio
import datetime as dt
import http.client
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from proton import SSLDomain
from proton.utils import BlockingConnection, LinkDetached

from tests.security.raw_amqp import RawConnection, Refused
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.launch import ServerFailed
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-12")

UNAUTHORIZED: Final = "amqp:unauthorized-access"


class Authority:
    """A certificate authority for an afternoon."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _subject(name)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._subject, self._key.public_key(), 3_600)
        self.path = folder / f"{name}.pem"
        signed = made.add_extension(constraints, critical=True).sign(self._key, hashes.SHA256())
        self.path.write_bytes(signed.public_bytes(Encoding.PEM))

    def issue(self, *names: str, lifetime_s: int = 3_600) -> tuple[Path, Path]:
        """Files with a certificate and its key, for these common names and this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        here = [
            x509.DNSName("localhost"),
            x509.DNSName("second.localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        builder = self._builder(_subject(*names), key.public_key(), lifetime_s)
        certificate = builder.add_extension(x509.SubjectAlternativeName(here), critical=False).sign(
            self._key, hashes.SHA256()
        )
        stem = f"{self.path.stem}-{'-'.join(names)}-{lifetime_s}"
        paths = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return paths

    def _builder(self, subject: x509.Name, key: Any, lifetime_s: int) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return x509.CertificateBuilder(
            self._subject,
            subject,
            key,
            x509.random_serial_number(),
            now - dt.timedelta(hours=1),
            now + dt.timedelta(seconds=lifetime_s),
        )


def _subject(*names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "theirs")


@pytest.fixture(scope="module")
def server(folder: Path, authority: Authority) -> Iterator[ServerProcess]:
    """Our own certificate, plain connections too, and two clients with rights."""
    certificate, key = authority.issue("server")
    arguments = ["--certificate", str(certificate), "--certificate-key", str(key)]
    arguments += ["--client-ca", str(authority.path), "--namespace", "first"]
    arguments += ["--client-rights", "app=Send", "--client-rights", "night shift=listen,Send"]
    arguments += ["--client-rights", "boss=Manage", "--namespace", "second"]
    with ServerProcess(folder / "data", arguments=arguments) as process:
        process.create_queue("orders")
        yield process
    assert "Traceback" not in process.log, process.log


def trusting(authority: Authority, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if client is not None:
        context.load_cert_chain(*client)
    return context


async def may(connection: RawConnection) -> set[str]:
    """Which of the rights a connection has on the queue."""
    rights = set()
    for role, right in (("sender", "Send"), ("receiver", "Listen")):
        _, condition = await connection.attach(role, "orders")
        assert condition in ("", UNAUTHORIZED)
        rights |= {right} if not condition else set()
    return rights


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.mutual-tls")
@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name, rights",
    [("app", {"Send"}), ("night shift", {"Send", "Listen"}), ("boss", {"Send", "Listen"})],
)
async def test_a_client_has_the_rights_of_its_name(
    server: ServerProcess, authority: Authority, name: str, rights: set[str]
) -> None:
    tls = trusting(authority, authority.issue(name))
    async with await RawConnection.tcp(server.port, tls, mechanism="EXTERNAL") as connection:
        assert await may(connection) == rights
    async with await RawConnection.tcp(server.port, tls) as connection:
        assert await may(connection) == set()  # who does not ask for it does not get it


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.mutual-tls")
@pytest.mark.asyncio
@pytest.mark.parametrize("names", [("unknown",), ("APP",), (), ("app", "boss"), ("app ",)])
async def test_a_name_without_rights(
    server: ServerProcess, authority: Authority, names: tuple[str, ...]
) -> None:
    tls = trusting(authority, authority.issue(*names))
    with pytest.raises(Refused):
        await RawConnection.tcp(server.port, tls, mechanism="EXTERNAL")


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.mutual-tls")
@pytest.mark.asyncio
async def test_external_without_a_certificate(server: ServerProcess, authority: Authority) -> None:
    for tls in (None, trusting(authority)):
        with pytest.raises(Refused):
            await RawConnection.tcp(server.port, tls, mechanism="EXTERNAL")


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.mutual-tls")
@pytest.mark.asyncio
async def test_a_certificate_of_strangers(
    server: ServerProcess, authority: Authority, stranger: Authority
) -> None:
    tls = trusting(authority, stranger.issue("app"))
    with pytest.raises((ssl.SSLError, ConnectionError, Refused)):
        await RawConnection.tcp(server.port, tls, mechanism="EXTERNAL")


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.mutual-tls")
@pytest.mark.asyncio
async def test_links_end_with_the_certificate(server: ServerProcess, authority: Authority) -> None:
    tls = trusting(authority, authority.issue("app", lifetime_s=4))
    async with await RawConnection.tcp(server.port, tls, mechanism="EXTERNAL") as connection:
        link, condition = await connection.attach("sender", "orders")
        assert condition == ""
        assert await connection.ended(link) == UNAUTHORIZED


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.mutual-tls")
def test_proton_by_certificate(server: ServerProcess, authority: Authority) -> None:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    certificate, key = authority.issue("app")
    domain.set_credentials(str(certificate), str(key), None)
    domain.set_trusted_ca_db(str(authority.path))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
    url = f"amqps://localhost:{server.port}"
    connection = BlockingConnection(
        url, ssl_domain=domain, allowed_mechs="EXTERNAL", sasl_enabled=True, timeout=15
    )
    with closing(connection):
        connection.create_sender("orders").close()  # type: ignore[no-untyped-call]
        with pytest.raises(LinkDetached, match="unauthorized"):
            connection.create_receiver("orders")


@pytest.mark.proves("M-12")
@pytest.mark.feature("entity.namespaces")
@pytest.mark.asyncio
async def test_the_name_asked_for_by_tls_decides(
    server: ServerProcess, authority: Authority
) -> None:
    """A client that says nothing in AMQP: the queue is in the first namespace only."""
    tls = trusting(authority, authority.issue("app"))
    for asked, condition in (("localhost", ""), ("second.localhost", "amqp:not-found")):
        opening = RawConnection.tcp(server.port, tls, mechanism="EXTERNAL", asked=asked)
        async with await opening as connection:
            assert (await connection.attach("sender", "orders"))[1] == condition


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.tls")
def test_our_own_certificate(server: ServerProcess, authority: Authority) -> None:
    """Nothing is made beside it, and nobody is told to trust anything else."""
    with closing(socket.create_connection(("127.0.0.1", server.port))) as plain:
        wrapped = trusting(authority).wrap_socket(plain, server_hostname="localhost")
        shown = wrapped.getpeercert()
        assert shown is not None
        assert shown["subject"] == ((("commonName", "server"),),)
        wrapped.close()
    assert not (server.data_dir / "tls").exists()
    command = [sys.executable, "-m", "twinbus", "env", "--data", str(server.data_dir)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = [line.partition("=")[0].removeprefix("export ") for line in lines.splitlines()]
    assert names == [
        "TWINBUS_CONNECTION_STRING",
        "TWINBUS_CONNECTION_STRING_FIRST",
        "TWINBUS_CONNECTION_STRING_SECOND",
    ]


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.tls")
def test_tls_only(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    arguments = ["--certificate", str(certificate), "--certificate-key", str(key)]
    arguments += ["--require-tls"]
    with ServerProcess(tmp_path / "data", arguments=arguments) as server:
        target = ConnectionString.parse(server.connection_string)
        assert not target.development_emulator
        for said, heard in (
            (b"AMQP\x03\x01\x00\x00", b"AMQP\x02\x01\x00\x00"),
            (b"AMQP\x00\x01\x00\x00", b"AMQP\x02\x01\x00\x00"),
            (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 403 Forbidden\r\n"),
        ):
            with closing(socket.create_connection(("127.0.0.1", server.port), 15)) as plain:
                plain.sendall(said)
                assert plain.makefile("rb").read().startswith(heard)
        tls = trusting(authority)
        client = http.client.HTTPSConnection("localhost", server.port, timeout=15, context=tls)
        with closing(client):
            client.request("GET", "/health")
            assert json.loads(client.getresponse().read())["status"] == "healthy"
        assert asyncio.run(speaks_amqp(server.port, tls, target))


async def speaks_amqp(port: int, tls: ssl.SSLContext, target: ConnectionString) -> bool:
    async with await RawConnection.tcp(port, tls) as connection:
        expires_s = SystemClock().now().utc_ms // 1_000 + 60
        token = make_sas_token("sb://x", target.key_name, target.key, expires_s)
        return await connection.put_token(token, "sb://x/q") == 200


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--certificate", "missing.pem"], "belong together"),
        (["--certificate", "missing.pem", "--certificate-key", "missing.key"], "missing.pem"),
        (["--client-ca", "missing.pem"], "missing.pem"),
        (["--client-rights", "app=Send"], "needs --client-ca"),
        (["--client-ca", "missing.pem", "--client-rights", "app"], "client rights"),
        (["--client-ca", "missing.pem", "--client-rights", "app=Fly"], "client rights"),
        (["--jwt-issuer", "https://x"], "--jwt-keys"),
        (["--jwt-keys", "missing.json"], "missing.json"),
        (["--limits", "huge"], "--limits"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, arguments: list[str], reason: str) -> None:
    server = ServerProcess(tmp_path / "data", arguments=arguments)
    with pytest.raises(ServerFailed) as caught:
        server.start()
    assert reason in caught.value.text
    assert "Traceback" not in caught.value.text
