"""Lines: every connection of the server, and what faults do to them (A-1, A-5, A-6).

    socket ─▶ transport ─▶ [ late ] ─▶ protocol        [ late ] only while a fault is in force
    socket ◀─ transport ◀─ [ late ] ◀─ Line ◀─ protocol

A protocol writes to its line as to a transport.  While no connection fault is in force a line only
passes on, and what comes in does not even go through it.

Whoever asks about faults or health, or opens the page, must get through, or no fault could be
cleared: a connection that begins with such a request is never touched.  To which namespace a
connection belongs is known by its host name, by its protocol once that is settled, or because there
is only one.
"""

import asyncio
import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from twinbus.gateway.faults.faults import Fault, Faults
from twinbus.gateway.faults.kinds import CUT_NAMESPACE, DROP_CONNECTIONS
from twinbus.limits import OUTPUT_BUFFER_BYTES_MAX
from twinbus.server.port.client_certificates import asked_host

LATE_INPUT_BYTES_MAX: Final = 1_048_576  # held back of one connection; then nothing more is read

_CONTROL: Final = re.compile(
    rb"[A-Z]+ /(((\$|%24)(faults|page)|health|metrics)[/? ]| )", re.IGNORECASE
)
_HOST: Final = re.compile(rb"\r\nhost:[ \t]*([^\r\n]{1,255})", re.IGNORECASE)
# SO_LINGER with a time of zero: closing sends RST, and what was under way is lost.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

Call = Callable[[], object]


class Lines:
    """The lines of one server."""

    def __init__(self, faults: Faults, by_host: Callable[[str | None], str | None]) -> None:
        self.faults = faults
        # The namespace that a host name is the name of; with None, the only one that there is.
        self.by_host = by_host
        # A line lives as long as its protocol holds it, which is until the connection is lost.
        self._all: WeakSet[Line] = WeakSet()

    def refuses(self, transport: asyncio.Transport, first: bytes) -> bool:
        """Whether a connection that begins with these bytes is not to be."""
        if not self.faults.connections_active or _CONTROL.match(first):
            return False
        return self.faults.refuses_connection(self._namespace(transport, first))

    def open(self, transport: asyncio.Transport, protocol: asyncio.Protocol, first: bytes) -> None:
        """Give a connection its protocol, and the protocol its first bytes."""
        namespace = self._namespace(transport, first)
        line = Line(self, transport, protocol, namespace)
        if _CONTROL.match(first):
            transport.set_protocol(protocol)
        else:
            self._all.add(line)
            line.watch(self.faults.connections_active)
        protocol.connection_made(line)
        line.received(first)

    def _namespace(self, transport: asyncio.Transport, first: bytes) -> str | None:
        host = asked_host(transport)
        if host is None and (header := _HOST.search(first)) is not None:
            host = header[1].decode("ascii", "replace")
        return self.by_host(host) or self.by_host(None)

    def begin(self, fault: Fault) -> None:
        """A connection fault is in force from now on."""
        for line in [line for line in self._all if not line.is_lost]:
            meant = fault.covers_namespace(line.namespace)
            if fault.kind is CUT_NAMESPACE and meant:
                fault.acted += 1
                line.reset()
            elif fault.kind is DROP_CONNECTIONS and meant and self.faults.hits(fault):
                line.reset()
            else:
                # Whose namespace is known counts as open already: only new ones are refused.
                line.is_welcome = line.is_welcome or line.namespace is not None
                line.watch(self.faults.connections_active)

    def end(self) -> None:
        """One is over."""
        if not self.faults.connections_active:
            for line in list(self._all):
                line.watch(False)


class Line(asyncio.Transport):
    """One connection, as its protocol sees it."""

    def __init__(
        self,
        lines: Lines,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        namespace: str | None,
    ) -> None:
        super().__init__()
        self._lines = lines
        self._transport = transport
        self._protocol = protocol
        self._host_namespace = namespace
        self.is_welcome = namespace is not None  # not to be refused as a new one any more
        # Only while it is watched, so that nothing keeps a line when its connection is gone.
        self._incoming: _Late | None = None
        self._outgoing: _Late | None = None
        self._reads = True  # as far as the protocol is concerned
        self._is_full = False  # the protocol has been told to write no more
        self._closes = False  # as soon as what is late has gone out

    @property
    def is_lost(self) -> bool:
        return self._transport.is_closing()

    @property
    def namespace(self) -> str | None:
        settled: str | None = getattr(self._protocol, "settled_namespace", None)
        return settled or self._host_namespace

    def settle(self) -> bool:
        """It has just turned out whose connection this is; False: it is refused for that."""
        return self._may_pass()

    def watch(self, is_watched: bool) -> None:
        """Look at what comes and goes from now on, or pass it on as it is."""
        if is_watched and self._incoming is None:
            self._incoming = _Late(self._update_reading)
            self._outgoing = _Late(self._update_writing)
            self._transport.set_protocol(_Watched(self))
        elif not is_watched:
            self._end_watch(flushes=True)
            self._transport.set_protocol(self._protocol)

    def _end_watch(self, flushes: bool) -> None:
        """What is late arrives now, or never."""
        incoming, outgoing = self._incoming, self._outgoing
        self._incoming = self._outgoing = None
        if incoming is not None and outgoing is not None:
            incoming.end(flushes)
            outgoing.end(flushes)

    def reset(self) -> None:
        """Break the connection, in the middle of whatever it was."""
        self._end_watch(flushes=False)
        reset(self._transport)

    def received(self, data: bytes) -> None:
        """Bytes have come in."""
        if self._may_pass():
            if self._incoming is None:
                self._protocol.data_received(data)
            else:
                delay_ms = self._lines.faults.connection_delay_ms(self.namespace)
                self._incoming.put(partial(self._pass_on, data), len(data), delay_ms)

    def _pass_on(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def _may_pass(self) -> bool:
        """Refuse a new connection as soon as it is known whose it is."""
        if self._incoming is not None and not self.is_welcome and self.namespace is not None:
            self.is_welcome = True
            if self._lines.faults.refuses_connection(self.namespace):
                self.reset()
        return not self.is_lost

    def _update_reading(self) -> None:
        if self.is_lost:
            return
        late = 0 if self._incoming is None else self._incoming.size
        if self._reads and late <= LATE_INPUT_BYTES_MAX:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _update_writing(self) -> None:
        is_full = self._outgoing is not None and self._outgoing.size > OUTPUT_BUFFER_BYTES_MAX
        if is_full != self._is_full:
            self._is_full = is_full
            if is_full:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    # -- what the socket's transport calls, while it is watched -------------------------------

    def ended(self) -> bool | None:
        if self._incoming is not None:
            self._incoming.flush()
        return self._protocol.eof_received()

    def lost(self, error: Exception | None) -> None:
        self._end_watch(flushes=False)
        self._protocol.connection_lost(error)

    def full(self, is_full: bool) -> None:
        if is_full:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    # -- what the protocol calls (asyncio.Transport) -----------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        outgoing = self._outgoing
        if outgoing is None:
            self._transport.write(data)
        elif self._may_pass():
            delay_ms = self._lines.faults.connection_delay_ms(self.namespace)
            outgoing.put(partial(self._transport.write, data), len(data), delay_ms)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._outgoing is None:
            self._transport.writelines(list_of_data)
        else:
            self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._after_what_is_late(self._transport.write_eof)

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def close(self) -> None:
        self._closes = True
        self._after_what_is_late(self._transport.close)

    def _after_what_is_late(self, call: Call) -> None:
        if self._outgoing is None:
            call()
        else:
            self._outgoing.put(call, 0, 0)

    def abort(self) -> None:
        self._end_watch(flushes=False)
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._reads = False
        self._update_reading()

    def resume_reading(self) -> None:
        self._reads = True
        self._update_reading()

    def is_reading(self) -> bool:
        return self._reads and not self.is_lost

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol
        if self._incoming is None:
            self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        late = 0 if self._outgoing is None else self._outgoing.size
        return self._transport.get_write_buffer_size() + late

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class _Watched(asyncio.Protocol):
    """Stands between a socket's transport and the protocol while a fault is in force."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def data_received(self, data: bytes) -> None:
        self._line.received(data)

    def eof_received(self) -> bool | None:
        return self._line.ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.lost(exc)

    def pause_writing(self) -> None:
        self._line.full(True)

    def resume_writing(self) -> None:
        self._line.full(False)


class _Late:
    """What is to happen later, in the order in which it came."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._calls: deque[tuple[float, Call, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.size = 0  # bytes

    def put(self, call: Call, size: int, delay_ms: int) -> None:
        """At once if nothing is late, and never before what came first."""
        if not self._calls and not delay_ms:
            call()
            return
        due_s = self._loop.time() + delay_ms / 1_000
        if self._calls:
            due_s = max(due_s, self._calls[-1][0])
        self._calls.append((due_s, call, size))
        self.size += size
        self._arm()
        self._changed()

    def flush(self) -> None:
        """All of it, now."""
        self._run(float("inf"))

    def end(self, flushes: bool) -> None:
        """Nothing is late any more: all of it happens now, or never."""
        if not flushes:
            self._calls.clear()
            self.size = 0
        self._run(float("inf"))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._timer = self._loop.call_at(self._calls[0][0], self._due)

    def _due(self) -> None:
        self._run(self._loop.time())

    def _run(self, now_s: float) -> None:
        if not self._calls:
            return
        while self._calls and self._calls[0][0] <= now_s:
            _, call, size = self._calls.popleft()
            self.size -= size
            call()
        self._arm()
        self._changed()


def reset(transport: asyncio.Transport) -> None:
    """End a connection without a word: the peer gets a reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
