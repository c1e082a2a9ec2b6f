"""Every connection of a client, and what faults do to them (A-1, A-5, A-6).

    socket ─▶ transport ─▶ [ FaultWatch ] ─▶ protocol      only while a connection fault is in force
    socket ◀─ transport ◀─ [ FaultWatch ] ◀─ ClientConnection ◀─ protocol

A protocol writes to its ClientConnection as to a transport.  While no connection fault is in force,
input bypasses it, and output goes straight through the transport's own `writelines`.

Requests about faults or health, and for the page, must get through, or no fault could be cleared: a
connection that begins with such a request is never touched.  A connection's namespace is known by
its host name, by its protocol once it says so, or because there is only one.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from twinbus.gateway.faults.faults import Fault, Faults
from twinbus.gateway.faults.kinds import CUT_NAMESPACE, DROP_CONNECTIONS
from twinbus.limits import OUTPUT_BUFFER_BYTES_MAX
from twinbus.server.port.client_certificates import asked_host
from twinbus.server.port.delayed_calls import Call, DelayedCalls

LATE_INPUT_BYTES_MAX: Final = 1_048_576  # held back of one connection; then nothing more is read

_CONTROL: Final = re.compile(
    rb"[A-Z]+ /(((\$|%24)(faults|page)|health|metrics)[/? ]| )", re.IGNORECASE
)
_HOST: Final = re.compile(rb"\r\nhost:[ \t]*([^\r\n]{1,255})", re.IGNORECASE)
# SO_LINGER with a time of zero: closing sends RST, and what was under way is lost.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class ClientConnections:
    """Those of one server."""

    def __init__(self, faults: Faults, by_host: Callable[[str | None], str | None]) -> None:
        self.faults = faults
        # The namespace that a host name is the name of; with None, the only one that there is.
        self.by_host = by_host
        # One lives as long as its protocol holds it, which is until the connection is lost.
        self._all: WeakSet[ClientConnection] = WeakSet()

    def refuses(self, transport: asyncio.Transport, first: bytes) -> bool:
        """Whether a connection that begins with these bytes is not to be."""
        if not self.faults.connections_active or _CONTROL.match(first):
            return False
        return self.faults.refuses_connection(self._namespace(transport, first))

    def open(self, transport: asyncio.Transport, protocol: asyncio.Protocol, first: bytes) -> None:
        """Give a connection its protocol, and the protocol its first bytes."""
        namespace = self._namespace(transport, first)
        connection = ClientConnection(self.faults, transport, protocol, namespace)
        if _CONTROL.match(first):
            transport.set_protocol(protocol)
        else:
            self._all.add(connection)
            connection.watch(self.faults.connections_active)
        connection.begin(first)

    def _namespace(self, transport: asyncio.Transport, first: bytes) -> str | None:
        host = asked_host(transport)
        if host is None and (header := _HOST.search(first)) is not None:
            host = header[1].decode("ascii", "replace")
        return self.by_host(host) or self.by_host(None)

    def begin(self, fault: Fault) -> None:
        """A connection fault is in force from now on."""
        for connection in [connection for connection in self._all if not connection.is_lost]:
            meant = fault.covers_namespace(connection.namespace)
            if fault.kind is CUT_NAMESPACE and meant:
                fault.acted += 1
                connection.reset()
            elif fault.kind is DROP_CONNECTIONS and meant and self.faults.hits(fault):
                connection.reset()
            else:
                # Whose namespace is known counts as open already: only new ones are refused.
                connection.is_welcome = connection.is_welcome or connection.namespace is not None
                connection.watch(self.faults.connections_active)

    def end(self) -> None:
        """One is over."""
        if not self.faults.connections_active:
            for connection in list(self._all):
                connection.watch(False)


class ClientConnection(asyncio.Transport):
    """One connection, as its protocol sees it."""

    def __init__(
        self,
        faults: Faults,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        namespace: str | None,
    ) -> None:
        super().__init__()
        self._faults = faults
        self._transport = transport
        self.protocol = protocol
        self._host_namespace = namespace
        self.is_welcome = namespace is not None  # not to be refused as a new one any more
        # Nothing else keeps a connection, so that it is forgotten when its protocol loses it.
        self._watch: FaultWatch | None = None
        self._reads = True  # as far as the protocol is concerned
        self._closes = False  # as soon as what is late has gone out
        self._lend()

    @property
    def is_lost(self) -> bool:
        return self._transport.is_closing()

    @property
    def namespace(self) -> str | None:
        settled: str | None = getattr(self.protocol, "settled_namespace", None)
        return settled or self._host_namespace

    def watch(self, is_watched: bool) -> None:
        """Look at what comes and goes from now on, or pass it on as it is."""
        if is_watched and self._watch is None:
            self._watch = FaultWatch(self, self._faults, self._transport)
            self._transport.set_protocol(self._watch)
            self._lend()
        elif not is_watched:
            self.end_watch(flushes=True)
            self._transport.set_protocol(self.protocol)

    def end_watch(self, flushes: bool) -> None:
        """What is late arrives now, or never."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._lend()
            watch.outgoing.end(flushes)  # first: what comes in is answered at once
            watch.incoming.end(flushes)

    def reset(self) -> None:
        """Break the connection, in the middle of whatever it was."""
        self.end_watch(flushes=False)
        reset(self._transport)

    def begin(self, first: bytes) -> None:
        """Give the protocol its connection and the first bytes."""
        self.protocol.connection_made(self)
        if self._watch is not None:
            self._watch.data_received(first)
        elif not self.is_lost:
            self.protocol.data_received(first)

    def may_pass(self) -> bool:
        """Refuse a new connection as soon as it is known whose it is."""
        if self._watch is not None and not self.is_welcome and self.namespace is not None:
            self.is_welcome = True
            if self._faults.refuses_connection(self.namespace):
                self.reset()
        return not self.is_lost

    def update_reading(self) -> None:
        if self.is_lost:
            return
        late = 0 if self._watch is None else self._watch.incoming.size_bytes
        if self._reads and late <= LATE_INPUT_BYTES_MAX:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- what the protocol calls (asyncio.Transport) -----------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._watch is None:
            self._transport.write(data)
        elif self.may_pass():
            self._watch.write(data)

    def _lend(self) -> None:
        writes = self._transport.writelines if self._watch is None else self._write_late
        self.writelines = writes  # type: ignore[method-assign]

    def _write_late(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._after_what_is_late(self._transport.write_eof)

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def close(self) -> None:
        self._closes = True
        self._after_what_is_late(self._transport.close)

    def _after_what_is_late(self, call: Call) -> None:
        if self._watch is None:
            call()
        else:
            self._watch.outgoing.put(call, 0, 0)

    def abort(self) -> None:
        self.end_watch(flushes=False)
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._reads = False
        self.update_reading()

    def resume_reading(self) -> None:
        self._reads = True
        self.update_reading()

    def is_reading(self) -> bool:
        return self._reads and not self.is_lost

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol
        if self._watch is None:
            self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        late = 0 if self._watch is None else self._watch.outgoing.size_bytes
        return self._transport.get_write_buffer_size() + late

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class FaultWatch(asyncio.Protocol):
    """Stands between a socket's transport and the protocol while a fault is in force."""

    def __init__(
        self, connection: ClientConnection, faults: Faults, transport: asyncio.Transport
    ) -> None:
        self._connection = connection
        self._faults = faults
        self._transport = transport
        self.incoming = DelayedCalls(connection.update_reading)
        self.outgoing = DelayedCalls(self._update_writing)
        self._is_full = False  # the protocol has been told to write no more

    def data_received(self, data: bytes) -> None:
        if self._connection.may_pass():
            delay_ms = self._faults.connection_delay_ms(self._connection.namespace)
            self.incoming.put(partial(self._pass_on, data), len(data), delay_ms)

    def _pass_on(self, data: bytes) -> None:
        self._connection.protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        delay_ms = self._faults.connection_delay_ms(self._connection.namespace)
        self.outgoing.put(partial(self._transport.write, data), len(data), delay_ms)

    def eof_received(self) -> bool | None:
        self.incoming.flush()
        return self._connection.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.end_watch(flushes=False)
        self._connection.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.protocol.pause_writing()

    def resume_writing(self) -> None:
        self._connection.protocol.resume_writing()

    def _update_writing(self) -> None:
        is_full = self.outgoing.size_bytes > OUTPUT_BUFFER_BYTES_MAX
        if is_full != self._is_full:
            self._is_full = is_full
            if is_full:
                self.pause_writing()
            else:
                self.resume_writing()


def reset(transport: asyncio.Transport) -> None:
    """End a connection without a word: the peer gets a reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
