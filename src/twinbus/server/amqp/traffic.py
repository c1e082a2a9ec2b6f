"""What goes out on one connection, once per turn: commands to the stores, frames to the client.

Neither side gets more than it can take.  While the client does not read, or the disk cannot keep
up, we read nothing from the client; while too much waits to go out, its receivers wait.
"""

import asyncio
from typing import Final, Protocol

from twinbus.amqp.connection import Connection
from twinbus.entities.commands import Command
from twinbus.gateway.gateway import Gateway
from twinbus.limits import CONNECTION_UNSETTLED_MAX, OUTPUT_BUFFER_BYTES_MAX, PENDING_BYTES_MAX

LAST_WORDS_S: Final = 2.0  # how long what was written may take to go out after the end


class GatheringLink(Protocol):
    """A link that collects everything from one read."""

    def flush(self) -> None: ...


class WaitingReceiver(Protocol):
    """A receiving link, which may have to wait until there is room."""

    def writable(self) -> None: ...


class Traffic:
    """Of one connection."""

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        self._connection = connection
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None  # while it is connected
        self._commands: list[Command] = []
        self._gathering: list[GatheringLink] = []
        self.receivers: dict[WaitingReceiver, None] = {}  # those that are open, in order
        self._will_flush = False
        self._client_is_full = False  # the socket's buffer is
        self._disk_is_behind = False
        self._held_back = False  # a receiver has been told to wait for the next flush

    # -- in ----------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Collected while events are dispatched, so that one read makes one submission."""
        self._commands.append(command)
        self.flush_soon()

    def flush_link_soon(self, link: GatheringLink) -> None:
        self._gathering.append(link)

    def end_read(self) -> None:
        """All events of one read have been dispatched."""
        if self._gathering:
            self._flush_links()
        if self._commands:
            self._submit_commands()
            self._gateway.turn_if_alone(self)
        self.flush()

    def flush_commands(self) -> None:
        """Have everything decided that came so far: what follows must find it done."""
        self._flush_links()
        while self._commands:  # deliveries that are refused together are tried one by one
            self._submit_commands()

    def _flush_links(self) -> None:
        gathering, self._gathering = self._gathering, []
        for link in gathering:
            link.flush()

    def _submit_commands(self) -> None:
        commands, self._commands = self._commands, []
        self._gateway.submit(commands)

    # -- out ---------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._will_flush = False
        if self._commands:
            self._submit_commands()
        if self.transport is None:
            return
        frames = self._connection.data_to_send()
        if frames:
            self.transport.writelines(frames)
        if self._held_back and not self._client_is_full:
            self._wake_receivers()
        if self._gateway.pending_bytes > PENDING_BYTES_MAX and not self._disk_is_behind:
            self._disk_is_behind = True
            self._update_reading()
            self._gateway.when_durable(self._caught_up)

    def close(self) -> None:
        self.flush()
        if self.transport is not None:
            self.transport.close()
            # A peer that does not read would keep its connection, and our buffer, for good.
            self._loop.call_later(LAST_WORDS_S, self._hang_up)

    def _hang_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # -- who cannot take more ----------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client does not read.  Neither do we, or its questions would pile up as answers."""
        self._client_is_full = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._client_is_full = False
        self._update_reading()
        self._wake_receivers()

    def holds_back(self) -> bool:
        """Receivers must wait: the socket takes no more, or this turn has gathered its share."""
        if self._client_is_full:
            return True
        connection = self._connection
        self._held_back = (
            connection.output_size >= OUTPUT_BUFFER_BYTES_MAX
            or connection.unsettled_count >= CONNECTION_UNSETTLED_MAX
        )
        return self._held_back

    def _wake_receivers(self) -> None:
        # While too much is unsettled, nobody is asked in vain.
        self._held_back = self._connection.unsettled_count >= CONNECTION_UNSETTLED_MAX
        if not self._held_back:
            for receiver in self.receivers:
                receiver.writable()

    def _caught_up(self) -> None:
        self._disk_is_behind = False
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._disk_is_behind or self._client_is_full:
            transport.pause_reading()
        else:
            transport.resume_reading()
