"""What filters see of a message, and what actions change about it.

Only the gateway can read these from the bytes of a message and write them back; here they are plain
Python values: None, bool, int, float, Decimal, str, bytes, UUID, datetime (UTC) and timedelta.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)

# Where newid() gets its ids: chance enters by argument.
NewId = Callable[[], UUID]

# The properties that Service Bus gives every message, as `sys.` names them, in lower case.
SYSTEM_NAMES: Final = frozenset(
    (
        "contenttype",
        "correlationid",
        "deadlettersource",
        "deliverycount",
        "enqueuedsequencenumber",
        "enqueuedtimeutc",
        "expiresatutc",
        "label",
        "lockeduntilutc",
        "locktoken",
        "messageid",
        "partitionkey",
        "replyto",
        "replytosessionid",
        "scheduledenqueuetimeutc",
        "sequencenumber",
        "sessionid",
        "size",
        "state",
        "timetolive",
        "to",
        "viapartitionkey",
    )
)
_ALIASES: Final = {"subject": "label"}

# What actions may change.
SETTABLE_NAMES: Final = frozenset(
    (
        "contenttype",
        "correlationid",
        "label",
        "messageid",
        "partitionkey",
        "replyto",
        "replytosessionid",
        "sessionid",
        "timetolive",
        "to",
        "viapartitionkey",
    )
)


def system_name(name: str) -> str:
    """The one name under which a system property is kept, known or not."""
    lower = name.lower()
    return _ALIASES.get(lower, lower)


class Fields:
    """What a filter may look at.

    `system`: by names out of SYSTEM_NAMES; a message that has no such value has None or nothing.
    `user`: the application properties; their names are kept in lower case, since SQL filters and
    correlation filters find them in any case.  Of names that differ in case only, the last counts.
    """

    __slots__ = ("system", "user")

    def __init__(self, system: dict[str, object], user: dict[str, object]) -> None:
        self.system = system
        self.user: dict[str, object] = {name.lower(): value for name, value in user.items()}

    def stamp(self, sequence_number: int, enqueued_utc_ms: int) -> None:
        """Add what a topic knows about a message and its bytes do not say."""
        enqueued = _EPOCH + timedelta(milliseconds=enqueued_utc_ms)
        self.system["sequencenumber"] = sequence_number
        self.system["enqueuedsequencenumber"] = sequence_number
        self.system["enqueuedtimeutc"] = enqueued
        time_to_live = self.system.get("timetolive")
        if isinstance(time_to_live, timedelta) and time_to_live < _LATEST - enqueued:
            self.system["expiresatutc"] = enqueued + time_to_live

    def copy(self) -> "Fields":
        """The same fields, to be changed."""
        copied = Fields(dict(self.system), {})
        copied.user = dict(self.user)
        return copied


class Changes:
    """What an action makes different in its copy of a message.

    `system`: names out of SETTABLE_NAMES; None means that the property goes.  `user`: names as the
    action writes them, to be looked for in any case; None is the value null.  `removed`: lower-case
    names of application properties that go.  No name is both set and removed.
    """

    __slots__ = ("removed", "system", "user")

    def __init__(self) -> None:
        self.system: dict[str, object] = {}
        self.user: dict[str, object] = {}
        self.removed: set[str] = set()


class MessageCodec(Protocol):
    """What the entities need to know about the inside of a message; the gateway's part."""

    def read_fields(self, stored: bytes) -> Fields:
        """What filters see.  Sections nobody can read count as empty."""

    def read_keys(self, stored: bytes) -> tuple[str | None, str | None, str | None]:
        """Message id, session id and partition key."""

    def read_properties(self, encoded: bytes) -> dict[str, object]:
        """Application properties that an overlay keeps, by their names in lower case."""

    def rewrite(self, stored: bytes, changes: Changes) -> bytes:
        """The message with these changes; everything else in it stays."""

    def new_id(self) -> UUID:
        """A random id, for newid()."""
