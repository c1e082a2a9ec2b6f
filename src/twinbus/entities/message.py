"""A message as the core sees it: where it stands, never what it says.

The body is opaque bytes.  `body` holds them from send until they are durable and the cache lets
go; after that the store reads them back from `position`.  Slots and shared ints keep a waiting
message well under 300 bytes, which is what lets ten million of them wait on a laptop.
"""

from typing import Final

# A lock is not a state: a locked message is ACTIVE (or DEFERRED) with a grant.
ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
GONE: Final = 3  # completed, expired or moved; only stale references still see it

# Later than any clock: no expiry, no schedule.  Two bits below 2**63, so that adding a time to it
# stays a machine word when compiled.
NEVER_MS: Final = 1 << 61


OVERLAY_BYTES: Final = 64  # what an overlay takes in the log beside its texts and properties


class Overlay:
    """What changed about a stored message without rewriting its body.

    `properties` is an AMQP map (opaque here) of application properties to set on delivery.
    """

    __slots__ = (
        "description",
        "enqueued_sequence_number",
        "hop_count",
        "properties",
        "reason",
        "source",
    )

    def __init__(
        self,
        reason: str | None = None,
        description: str | None = None,
        source: str | None = None,
        properties: bytes | None = None,
        hop_count: int = 0,
        enqueued_sequence_number: int = 0,
    ) -> None:
        self.reason = reason
        self.description = description
        self.source = source  # the entity where it was dead-lettered, if it was moved since
        self.properties = properties
        self.hop_count = hop_count  # how often it has been forwarded
        # The number that the entity it was first sent to gave it; 0 = the one it has.
        self.enqueued_sequence_number = enqueued_sequence_number


def merge_overlays(older: Overlay | None, newer: Overlay | None) -> Overlay | None:
    """The older with everything replaced that the newer says.

    `properties` is opaque, so it is replaced as a whole and not key by key.  The result is a new
    object: facts not yet written may still hold the older one.
    """
    if older is None or newer is None:
        return newer if older is None else older
    return Overlay(
        newer.reason if newer.reason is not None else older.reason,
        newer.description if newer.description is not None else older.description,
        newer.source if newer.source is not None else older.source,
        newer.properties if newer.properties is not None else older.properties,
        newer.hop_count or older.hop_count,
        newer.enqueued_sequence_number or older.enqueued_sequence_number,
    )


def overlay_bytes(overlay: Overlay | None) -> int:
    """What an overlay takes in the log, at most."""
    if overlay is None:
        return 0
    chars = len(overlay.reason or "") + len(overlay.description or "") + len(overlay.source or "")
    return OVERLAY_BYTES + 4 * chars + len(overlay.properties or b"")  # UTF-8: up to 4 a character


class Message:
    """One stored message."""

    __slots__ = (
        "body",
        "delivery_count",
        "enqueued_ms",
        "expires_ms",
        "grant",
        "length",
        "locked_until_ms",
        "overlay",
        "position",
        "sequence_number",
        "session_id",
        "state",
    )

    def __init__(
        self,
        sequence_number: int,
        body: bytes | None,
        length: int,
        enqueued_ms: int,
        expires_ms: int = NEVER_MS,
        session_id: str | None = None,
        state: int = ACTIVE,
    ) -> None:
        self.sequence_number = sequence_number
        self.body = body
        self.length = length
        self.position = 0  # where the body lies: segment number << 32 | offset; 0 = not written yet
        self.enqueued_ms = enqueued_ms  # UTC; for a scheduled message: when it is due
        self.expires_ms = expires_ms  # UTC
        self.delivery_count = 0
        self.state = state
        self.grant = 0  # number of the lock that holds it; 0 = not locked
        self.locked_until_ms = 0  # monotonic; meaningful while grant != 0
        self.session_id = session_id
        self.overlay: Overlay | None = None

    def copy(self) -> "Message":
        """The message as it is at this moment, without its body."""
        copy = Message(
            self.sequence_number,
            None,
            self.length,
            self.enqueued_ms,
            self.expires_ms,
            self.session_id,
            self.state,
        )
        copy.delivery_count = self.delivery_count
        copy.grant = self.grant
        copy.overlay = self.overlay
        return copy


class ProducerKey:
    """What sets a message on its way in apart from nearly all others.

    Either it is a ping: checked like a message, and then forgotten.  Or its producer has numbered
    it, and sends it under the same number whenever it sends it again (arrivals.py).

    A producer that asks can choose another partition for the message, and number it anew: a
    partition that would not take it at once is to refuse it.
    """

    __slots__ = ("is_asking", "is_ping", "number", "producer")

    def __init__(
        self, producer: str, number: int, is_ping: bool = False, is_asking: bool = False
    ) -> None:
        self.producer = producer
        self.number = number
        self.is_ping = is_ping
        self.is_asking = is_asking


class NewMessage:
    """A message on its way in, as the gateway hands it over."""

    __slots__ = (
        "body",
        "message_id",
        "overlay",
        "partition_key",
        "producer_key",
        "scheduled_ms",
        "session_id",
        "time_to_live_ms",
    )

    def __init__(
        self,
        body: bytes,
        time_to_live_ms: int = NEVER_MS,
        scheduled_ms: int = 0,
        message_id: str | None = None,
        session_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.body = body
        self.time_to_live_ms = time_to_live_ms
        self.scheduled_ms = scheduled_ms  # UTC; 0 = now
        # These three only where the entity has a use for them: reading them takes time.
        self.message_id = message_id
        self.session_id = session_id
        self.partition_key = partition_key
        self.overlay: Overlay | None = None  # what a forwarded message brings along
        self.producer_key: ProducerKey | None = None

    @property
    def is_ping(self) -> bool:
        """Is it to be checked and then forgotten?"""
        return self.producer_key is not None and self.producer_key.is_ping


def has_producer_key(messages: list[NewMessage]) -> bool:
    """Is any of these a ping, or numbered by its producer?"""
    for message in messages:  # noqa: SIM110 - a loop is twice as fast, and every send asks
        if message.producer_key is not None:
            return True
    return False


def scheduled_message(new: NewMessage, number: int, due_ms: int, ttl_max_ms: int) -> Message:
    """A message that waits until it is due.  Its life is counted from then on."""
    ttl_ms = min(new.time_to_live_ms, ttl_max_ms)
    expires_ms = NEVER_MS if ttl_ms == NEVER_MS else due_ms + ttl_ms
    body = new.body
    message = Message(number, body, len(body), due_ms, expires_ms, new.session_id, SCHEDULED)
    message.overlay = new.overlay
    return message
