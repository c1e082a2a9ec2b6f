"""What a pair reports to its namespaces, where these are twinbus: how its entities are, now.

A bus cannot know that somebody has failed over from it, or into it, unless it is told.  Whoever is
not a twinbus is never told anything (`/health` says who it is), and a report is never in the way of
a send.  Pure: what goes out, and by which right; the shells do it.
"""

import base64
import datetime as dt
import hmac
import json
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import quote_plus

from twinbus.limits import PAIR_REPORT_BYTES_MAX
from twinbus.pairing.events import BacklogQueueStatus, EntityStatus, PairingStatus, State
from twinbus.pairing.options import host_and_port

INTERVAL_S: Final = 10.0
PAUSE_S: Final = 0.5  # between two reports, however much happens
TOKEN_S: Final = 300
ENTITIES_MAX: Final = 200
QUEUES_MAX: Final = 100
STRANGERS_MAX: Final = 5  # other primaries that are named, of one queue
ERROR_CHARS_MAX: Final = 100


@dataclass(frozen=True)
class Destination:
    """A namespace that may be told: one whose key is known."""

    host: str
    port: int
    has_tls: bool
    key_name: str
    key: str

    def token(self, utc_s: int) -> str:
        """The right to report, for a few minutes."""
        resource = quote_plus(f"https://{self.host}/")
        expires_s = utc_s + TOKEN_S
        signed = f"{resource}\n{expires_s}".encode()
        digest = base64.b64encode(hmac.digest(self.key.encode(), signed, "sha256"))
        fields = f"sr={resource}&sig={quote_plus(digest)}&se={expires_s}"
        return f"SharedAccessSignature {fields}&skn={quote_plus(self.key_name)}"


def destination_of(connection_string: str) -> Destination | None:
    """None: it has no key, and other credentials are for the SDK alone."""
    fields: dict[str, str] = {}
    for part in connection_string.split(";"):
        name, _, value = part.strip().partition("=")
        fields[name.strip().lower()] = value.strip()
    key_name, key = fields.get("sharedaccesskeyname"), fields.get("sharedaccesskey")
    if not key_name or not key:
        return None
    try:
        host, port = host_and_port(fields.get("endpoint", ""))
    except ValueError:
        return None  # the SDK says what is wrong with it
    has_tls = fields.get("usedevelopmentemulator", "").lower() != "true"
    return Destination(host, port or (443 if has_tls else 80), has_tls, key_name, key)


def is_twinbus(health: bytes) -> bool:
    """Is this what a twinbus says at `/health`?"""
    try:
        document = json.loads(health)
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    return "version" in document and str(document.get("message", "")).startswith("twinbus ")


def report_of(status: PairingStatus, client: str, now: dt.datetime) -> bytes:
    """The body of a report.  What has no room is left out, and what is well before what is not."""
    entities = sorted(status.entities.values(), key=_is_well)[:ENTITIES_MAX]
    queues = list(status.backlog_queues.values())[:QUEUES_MAX]
    while True:
        document = {
            "primary": status.primary,
            "secondary": status.secondary,
            "client": client,
            "syphon_running": status.syphon_running,
            "fault": status.fault[:ERROR_CHARS_MAX],
            "entities": [_entity(each, now) for each in entities],
            "backlog_queues": [_queue(each) for each in queues],
        }
        report = json.dumps(document).encode()
        if len(report) <= PAIR_REPORT_BYTES_MAX:
            return report
        entities = entities[: len(entities) // 2]
        queues = queues[: len(queues) // 2]


def _is_well(status: EntityStatus) -> bool:
    return status.state is State.HEALTHY


def _queue(status: BacklogQueueStatus) -> dict[str, Any]:
    return {
        "queue": status.queue,
        "in_rotation": status.in_rotation,
        "moved": status.moved,
        "dead_lettered": status.dead_lettered,
        "held": status.held,
        "strangers": status.strangers,
        "strangers_of": [
            {"primary": primary[:ERROR_CHARS_MAX], "count": count}
            for primary, count in islice(status.strangers_of.items(), STRANGERS_MAX)
        ],
    }


def _entity(status: EntityStatus, now: dt.datetime) -> dict[str, Any]:
    for_s = status.failed_over_for_s
    if for_s is None:
        for_s = status.failing_for_s
    since = None if for_s is None else now - dt.timedelta(seconds=for_s)
    error = status.last_error
    return {
        "name": status.entity,
        "state": status.state.value,
        "since": None if since is None else _iso(since),
        "forced": status.forced,
        "sent_to_primary": status.sent_to_primary,
        "sent_to_backlog": status.sent_to_backlog,
        "last_error": None if error is None else _told(error),
    }


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]


def _iso(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
