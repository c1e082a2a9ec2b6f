"""What `twinbus doctor` looks at in a data directory: room, syncs, certificates.

Writes one small file, syncs it a few hundred times, and removes it again.
"""

import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from twinbus.certificates import RENEWAL_DAYS
from twinbus.cli.doctor.findings import BAD, OK, WARN, Finding
from twinbus.clock import SystemClock, monotonic_s

SYNCS: Final = 200
SYNC_S_MAX: Final = 2.0  # whatever has been measured then is enough
_BLOCK: Final = bytes(4_096)
SYNC_MS_GOOD: Final = 10.0
SYNC_MS_BAD: Final = 500.0
SYNC_MS_TOO_GOOD: Final = 0.03  # no disk that keeps its word is that quick
FREE_BYTES_GOOD: Final = 2 << 30
FREE_BYTES_MIN: Final = 256 << 20
_DAY_S: Final = 86_400


def look_at_disk(data_dir: Path | None) -> Iterator[Finding]:
    """Of a data directory, or of where we are if none is named."""
    place = Path() if data_dir is None else data_dir
    if not place.is_dir():
        fix = "set --data to an existing directory; `twinbus serve` creates one"
        yield Finding("data", BAD, f"{place} is not a directory", fix)
        return
    yield _room(place)
    yield _syncs(place)
    if data_dir is not None:
        yield from look_at_certificates(data_dir / "tls")


def _room(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    found = f"{free / (1 << 30):,.1f} GiB free at {place.resolve()}"
    if free < FREE_BYTES_GOOD:
        state = BAD if free < FREE_BYTES_MIN else WARN
        return Finding("disk room", state, found, "make room, or choose another disk with --data")
    return Finding("disk room", OK, found)


# --- syncs ----------------------------------------------------------------------------------------


def _syncs(place: Path) -> Finding:
    try:
        latencies_ms = measure_syncs(place)
    except OSError as error:
        found = f"cannot write at {place} ({error.strerror})"
        return Finding("disk sync", BAD, found, "set --data to a directory this user may write")
    return judge_syncs(latencies_ms)


def measure_syncs(place: Path) -> list[float]:
    """How long a write of one block takes until it is durable, ordered, in milliseconds."""
    latencies_ms: list[float] = []
    with tempfile.NamedTemporaryFile(prefix=".twinbus-doctor-", dir=place) as file:
        descriptor = file.fileno()
        end_s = monotonic_s() + SYNC_S_MAX
        while len(latencies_ms) < SYNCS and (began_s := monotonic_s()) < end_s:
            os.write(descriptor, _BLOCK)
            os.fdatasync(descriptor)
            latencies_ms.append((monotonic_s() - began_s) * 1_000)
    return sorted(latencies_ms)


def judge_syncs(latencies_ms: list[float]) -> Finding:
    """What these latencies, in order, mean for a bus."""
    median = latencies_ms[len(latencies_ms) // 2]
    p99 = latencies_ms[math.ceil(len(latencies_ms) * 0.99) - 1]
    found = (
        f"median {median:.2f} ms, p99 {p99:.2f} ms: one sender that waits for each message sends "
        f"about {1_000 / max(median, 0.01):,.0f} a second, many senders share a sync"
    )
    if median > SYNC_MS_BAD:
        return Finding("disk sync", BAD, found, "choose another disk: clients will time out")
    if median < SYNC_MS_TOO_GOOD:
        fix = "make sure that this is a real disk (not tmpfs) and its cache survives power loss"
        return Finding("disk sync", WARN, f"{found}; too fast for a disk that really syncs", fix)
    if median > SYNC_MS_GOOD:
        return Finding(
            "disk sync", WARN, found, "an SSD, best with power-loss protection, is faster"
        )
    return Finding("disk sync", OK, found)


# --- certificates ---------------------------------------------------------------------------------


def look_at_certificates(tls: Path) -> Iterator[Finding]:
    if not tls.is_dir():
        yield Finding("certificates", OK, "none yet: the first `twinbus serve` creates them")
        return
    now = datetime.fromtimestamp(SystemClock().now().utc_ms / 1_000, UTC)
    for name, purpose in (("ca.pem", "development CA"), ("server.pem", "server certificate")):
        yield _certificate(tls / name, purpose, now)
    for name in ("ca.key", "server.key"):
        path = tls / name
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            found = f"{path} can be read by others"
            yield Finding("private keys", BAD, found, f"chmod 600 {path}")


def _certificate(path: Path, purpose: str, now: datetime) -> Finding:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        fix = f"move {path.parent} away; the next `twinbus serve` creates new ones"
        return Finding(purpose, BAD, f"{path} cannot be read", fix)
    ends = certificate.not_valid_after_utc
    days = int((ends - now).total_seconds() // _DAY_S)
    found = f"valid until {ends:%Y-%m-%d}, {days:,} days"
    fix = "restart the server: it renews its certificates when it starts"
    if certificate.not_valid_before_utc > now:
        return Finding(purpose, BAD, "not valid yet", "set the clock, preferably by NTP")
    if days < RENEWAL_DAYS:
        return Finding(purpose, BAD if days < 0 else WARN, found, fix)
    return Finding(purpose, OK, found)
