"""A development CA and a server certificate, made on first start in `DIR/tls/`.

For trying things out on one machine and inside a private network, so that clients which insist on
TLS (the SDK's administration client) have something to trust.  The CA's key stays on this machine,
readable by its owner only; it signs nothing but this server's certificate.

    ca.pem       the CA; what clients have to trust
    ca.key       its key (0600), kept so that a renewed server certificate needs no new trust
    server.pem   the server's certificate, with the CA's behind it
    server.key   its key (0600)
    bundle.pem   the public CAs and ours, for clients that take one file in place of their own
"""

import datetime as dt
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from twinbus.clock import Clock, SystemClock
from twinbus.config import TlsConfig, write_private
from twinbus.errors import ConfigError

CA_LIFETIME_DAYS: Final = 3_650
SERVER_LIFETIME_DAYS: Final = 397  # the most that browsers and Apple's TLS accept
RENEWAL_DAYS: Final = 30  # renewed on the first start after this long before the end
# A clock that is a little behind must not find a brand-new certificate "not yet valid".
BACKDATED: Final = dt.timedelta(hours=1)

Key = ec.EllipticCurvePrivateKey


def server_context(
    data_dir: Path,
    host: str,
    clock: Clock | None = None,
    config: TlsConfig | None = None,
    namespaces: Sequence[str] = (),
) -> ssl.SSLContext:
    """A server's TLS context, with the certificate it was given, or else one of our own, which is
    made or renewed first where needed.
    """
    config = config or TlsConfig()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sni_callback = _remember_asked_host
    if config.certificate is None or config.key is None:
        names = _names(host, namespaces)
        _load_own(context, data_dir / "tls", names, _now(clock or SystemClock()))
    else:
        try:
            context.load_cert_chain(config.certificate, config.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{config.certificate} and {config.key} are not a certificate and key ({error}); "
                "set --certificate and --certificate-key to PEM files"
            ) from error
    if config.client_ca is not None:
        # Optional: others may still come with a token.
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(config.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{config.client_ca} is not a CA in PEM ({error}); set --client-ca to one"
            ) from error
    return context


def _load_own(
    context: ssl.SSLContext, tls: Path, names: list[x509.GeneralName], now: dt.datetime
) -> None:
    tls.mkdir(mode=0o700, exist_ok=True)
    try:
        ca, ca_key = _ensure_ca(tls, now)
        _ensure_server(tls, now, names, ca, ca_key)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
    except (ValueError, TypeError, ssl.SSLError) as error:
        raise ConfigError(
            f"{tls}: the certificates cannot be read ({error}); move the directory away to get "
            "new ones"
        ) from error


def _remember_asked_host(
    connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
) -> None:
    """The name may tell which namespace is meant; it is looked up where that is needed."""
    connection.asked_host = name  # type: ignore[union-attr]


def ca_certificate(data_dir: Path) -> Path:
    """Where the CA's certificate is."""
    path = data_dir / "tls" / "ca.pem"
    if not path.exists():
        raise ConfigError(f"{path} is missing; start a server once to create it")
    return path


def ca_bundle(data_dir: Path) -> Path:
    """One file with the CAs this machine trusts and ours, so that other TLS still works."""
    path = data_dir / "tls" / "bundle.pem"
    ours = ca_certificate(data_dir).read_text()
    public = _public_cas(path)
    parts = [public.read_text(), ours] if public else [ours]
    write_private(path, "\n".join(part.rstrip() for part in parts) + "\n")
    return path


def _public_cas(ours: Path) -> Path | None:
    """What clients would trust without us: what the user has set, certifi's, or the system's."""
    candidates = [os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("SSL_CERT_FILE")]
    try:
        import certifi  # noqa: PLC0415 - not a dependency; there where the official SDK is
    except ImportError:
        pass
    else:
        candidates.append(certifi.where())
    candidates.append(ssl.get_default_verify_paths().cafile)
    for candidate in candidates:
        if candidate and Path(candidate).is_file() and Path(candidate).resolve() != ours.resolve():
            return Path(candidate)
    return None


def _ensure_ca(tls: Path, now: dt.datetime) -> tuple[x509.Certificate, Key]:
    certificate_path, key_path = tls / "ca.pem", tls / "ca.key"
    if certificate_path.exists() and key_path.exists():
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        if _lives_on(certificate, now):
            return certificate, _load_key(key_path)
    key = ec.generate_private_key(ec.SECP256R1())
    # Several of them may be trusted at a time, so the name tells them apart.
    name = f"twinbus development CA {socket.gethostname()} {now:%Y-%m-%d %H:%M:%S}"[:64]
    subject = _subject(name)
    certificate = (
        _builder(subject, subject, key, now, CA_LIFETIME_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _store(key_path, key, certificate_path, [certificate])
    return certificate, key


def _ensure_server(
    tls: Path, now: dt.datetime, names: list[x509.GeneralName], ca: x509.Certificate, ca_key: Key
) -> None:
    certificate_path, key_path = tls / "server.pem", tls / "server.key"
    if certificate_path.exists() and key_path.exists():
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        if _lives_on(certificate, now) and certificate.issuer == ca.subject:
            extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            if set(names) <= set(extension.value):
                return
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_subject("twinbus"), ca.subject, key, now, SERVER_LIFETIME_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    _store(key_path, key, certificate_path, [certificate, ca])


def _names(host: str, namespaces: Sequence[str]) -> list[x509.GeneralName]:
    """Every name under which this machine may be called."""
    # One for each: OpenSSL believes no `*.localhost`.
    local = [f"{namespace}.localhost".lower() for namespace in namespaces]
    texts = dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname(), host, *local])
    names: list[x509.GeneralName] = []
    for text in texts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            # A host name that is not ASCII cannot stand in a certificate as it is.
            if text and text.isascii():
                names.append(x509.DNSName(text))
    return names


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: dt.datetime, lifetime_days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now - BACKDATED + dt.timedelta(days=lifetime_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _lives_on(certificate: x509.Certificate, now: dt.datetime) -> bool:
    return certificate.not_valid_after_utc - now > dt.timedelta(days=RENEWAL_DAYS)


def _store(key_path: Path, key: Key, certificate_path: Path, chain: list[x509.Certificate]) -> None:
    """The certificate goes first away and comes last: a crash between leaves no mismatched pair."""
    certificate_path.unlink(missing_ok=True)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(key_path, pem.decode())
    text = "".join(link.public_bytes(serialization.Encoding.PEM).decode() for link in chain)
    write_private(certificate_path, text)
    certificate_path.chmod(0o644)


def _load_key(path: Path) -> Key:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} is not an elliptic curve key")
    return key


def _now(clock: Clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(clock.now().utc_ms / 1000, tz=dt.UTC)
