"""What each side of a connection says about itself before anything else happens."""

from twinbus.amqp.places import ServerPlaces
from twinbus.limits import (
    CHANNELS_MAX,
    FRAME_SIZE_BYTES_MAX,
    FRAME_SIZE_BYTES_MIN,
    HANDLE_NUMBER_MAX,
    IDLE_TIMEOUT_MS,
)


class ConnectionSettings:
    """What one side says about itself, and what it accepts."""

    __slots__ = (
        "channel_max",
        "container_id",
        "frame_size_max",
        "handle_max",
        "hostname",
        "idle_timeout_ms",
        "places",
        "properties",
        "require_sasl",
        "sasl_mechanisms",
        "sasl_response",
    )

    def __init__(
        self,
        container_id: str,
        hostname: str | None = None,
        frame_size_max: int = FRAME_SIZE_BYTES_MAX,
        channel_max: int = CHANNELS_MAX - 1,
        handle_max: int = HANDLE_NUMBER_MAX,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
        properties: dict[object, object] | None = None,
        sasl_mechanisms: tuple[str, ...] = (),
        sasl_response: bytes = b"",
        require_sasl: bool = False,
        places: ServerPlaces | None = None,
    ) -> None:
        self.container_id = container_id
        self.hostname = hostname  # a client's: whom it wants to reach
        self.frame_size_max = frame_size_max
        self.channel_max = channel_max
        self.handle_max = handle_max
        self.idle_timeout_ms = idle_timeout_ms  # silence after which we hang up; 0: never
        self.properties = properties
        self.sasl_mechanisms = sasl_mechanisms  # a server's offer; a client's choice, one or none
        self.sasl_response = sasl_response  # a client's
        self.require_sasl = require_sasl  # a server's: no AMQP header without SASL before it
        self.places = places or ServerPlaces()  # a server's connections share theirs


class Peer:
    """What the other side's `open` says."""

    __slots__ = (
        "channel_max",
        "container_id",
        "frame_size_max",
        "hostname",
        "idle_timeout_ms",
        "properties",
    )

    def __init__(self) -> None:
        self.container_id = ""
        self.hostname: str | None = None
        self.frame_size_max: int = FRAME_SIZE_BYTES_MIN
        self.channel_max = 0
        self.idle_timeout_ms = 0  # 0: none
        self.properties: dict[object, object] | None = None
