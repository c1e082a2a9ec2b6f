"""The development CA and server certificate."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from twinbus.certificates import (
    RENEWAL_DAYS,
    SERVER_LIFETIME_DAYS,
    ca_bundle,
    ca_certificate,
    server_context,
)
from twinbus.clock import Now, SystemClock
from twinbus.errors import ConfigError

DAY_MS = 86_400_000


class FixedClock:
    """Stands at the system's time plus so many days."""

    def __init__(self, days: int) -> None:
        self._now = Now(SystemClock().now().utc_ms + days * DAY_MS, 0)

    def now(self) -> Now:
        return self._now


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """One TLS handshake between the two, over a socket pair."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def serve() -> None:
            try:
                server.wrap_socket(ours, server_side=True).close()
            except (ssl.SSLError, OSError):
                ours.close()  # the client says why

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            client.wrap_socket(theirs, server_hostname=host).close()
        finally:
            theirs.close()
            thread.join()


def serial(data_dir: Path, name: str) -> int:
    return x509.load_pem_x509_certificate((data_dir / "tls" / name).read_bytes()).serial_number


@pytest.mark.proves("M-12")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "bus.example"])
def test_clients_that_trust_the_ca_connect(tmp_path: Path, host: str) -> None:
    """TLS."""
    server = server_context(tmp_path, "bus.example")
    client = ssl.create_default_context(cafile=ca_certificate(tmp_path))
    handshake(server, client, host)


def test_other_clients_and_other_names_do_not(tmp_path: Path) -> None:
    server = server_context(tmp_path, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, ssl.create_default_context(), "localhost")
    client = ssl.create_default_context(cafile=ca_certificate(tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "elsewhere.example")


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    server_context(tmp_path, "127.0.0.1")
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / "tls" / name).stat().st_mode) == 0o600


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    server_context(tmp_path, "127.0.0.1")
    before = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    server_context(tmp_path, "127.0.0.1")
    assert {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()} == before


@pytest.mark.parametrize(
    "days, host, renewed",
    [
        (SERVER_LIFETIME_DAYS - RENEWAL_DAYS - 2, "127.0.0.1", False),
        (SERVER_LIFETIME_DAYS - RENEWAL_DAYS + 1, "127.0.0.1", True),
        (0, "bus.example", True),
    ],
)
def test_renewal_keeps_the_ca(tmp_path: Path, days: int, host: str, *, renewed: bool) -> None:
    server_context(tmp_path, "127.0.0.1")
    ca, server = serial(tmp_path, "ca.pem"), serial(tmp_path, "server.pem")
    server_context(tmp_path, host, FixedClock(days))
    assert serial(tmp_path, "ca.pem") == ca
    assert (serial(tmp_path, "server.pem") != server) is renewed


def test_an_old_ca_is_replaced_with_everything_under_it(tmp_path: Path) -> None:
    server_context(tmp_path, "127.0.0.1", FixedClock(-3_630))
    ca = serial(tmp_path, "ca.pem")
    server = server_context(tmp_path, "127.0.0.1")
    assert serial(tmp_path, "ca.pem") != ca
    client = ssl.create_default_context(cafile=ca_certificate(tmp_path))
    handshake(server, client, "localhost")


def test_half_made_files_are_made_again(tmp_path: Path) -> None:
    """A crash between key and certificate leaves the key alone."""
    server_context(tmp_path, "127.0.0.1")
    (tmp_path / "tls" / "server.pem").unlink()
    server = server_context(tmp_path, "127.0.0.1")
    client = ssl.create_default_context(cafile=ca_certificate(tmp_path))
    handshake(server, client, "localhost")


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem", "server.key"])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    server_context(tmp_path, "127.0.0.1")
    (tmp_path / "tls" / name).write_text("no certificate")
    with pytest.raises(ConfigError, match="tls"):
        server_context(tmp_path, "127.0.0.1")


def test_bundle_trusts_us_and_everybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tmp_path / "public.pem"
    server_context(tmp_path, "127.0.0.1")
    public.write_text("-- other authorities --\n")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(public))
    bundle = ca_bundle(tmp_path)
    ours = ca_certificate(tmp_path).read_text()
    assert bundle.read_text() == "-- other authorities --\n" + ours
    # In a shell that has our variables already, the bundle must not swallow itself.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert ca_bundle(tmp_path).read_text().count(ours) == 1


def test_no_ca_yet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start a server"):
        ca_bundle(tmp_path)
