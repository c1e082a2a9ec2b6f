"""The peer of an HTTP connection: a stranger until one of its tokens was accepted."""

import asyncio

from twinbus.errors import Unavailable
from twinbus.server.port.connections import ClientConnection
from twinbus.server.port.strangers import Strangers, StrangerShare


class Peer:
    """Of one connection."""

    def __init__(self, strangers: Strangers) -> None:
        self.transport: asyncio.Transport | None = None  # while it is connected, and ours
        self.settled_namespace: str | None = None  # by the latest token
        self._share = StrangerShare(strangers)

    @property
    def is_gone(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    @property
    def is_stranger(self) -> bool:
        return self.settled_namespace is None

    @property
    def address(self) -> str:
        assert self.transport is not None
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def has_tls(self) -> bool:
        assert self.transport is not None
        return bool(self.transport.get_extra_info("ssl_object"))

    def settle(self, namespace: str) -> None:
        """Nothing is done for a namespace that a fault has cut off: the connection is reset."""
        self.settled_namespace = namespace
        self.release()
        if isinstance(self.transport, ClientConnection) and not self.transport.may_pass():
            raise Unavailable("The namespace cannot be contacted.")

    def hold(self, size_bytes: int) -> bool:
        """So much of a stranger is kept; False: all of them together have no room for it."""
        return self._share.hold(size_bytes)

    def release(self) -> None:
        self._share.release()

    def write(self, data: bytes | None) -> None:
        if self.transport is not None and data:
            self.transport.write(data)
