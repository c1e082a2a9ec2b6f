"""What one AMQP client may have us keep before it has shown a key."""

from typing import Final

from twinbus.amqp.connection import Connection
from twinbus.limits import STRANGER_BYTES_MAX
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.request_node import ResponseLink
from twinbus.server.port.strangers import Strangers, StrangerShare

TRANSACTION_BYTES: Final = 1_024  # what a stranger's counts for, about what it takes


class StrangerRoom:
    """Sessions and links have places of their own; this is about everything else."""

    def __init__(
        self, connection: Connection, conversation: Conversation, strangers: Strangers
    ) -> None:
        self._connection = connection
        self._conversation = conversation
        self._share = StrangerShare(strangers)
        self._attach_bytes = 0  # what brought links: names and all

    def took(self, size_bytes: int, attaches: bool) -> bool:
        """So many bytes were taken in; False: we would have to keep too much."""
        if attaches:
            self._attach_bytes += size_bytes
        kept = self._kept_bytes()
        return kept <= STRANGER_BYTES_MAX and self._share.hold(kept)

    def _kept_bytes(self) -> int:
        kept = self._connection.kept_bytes + self._attach_bytes
        kept += self._conversation.transactions.open_count * TRANSACTION_BYTES
        for link in self._conversation.links:
            if isinstance(link.context, ResponseLink):
                kept += link.context.waiting_bytes
        transport = self._conversation.traffic.transport
        return kept if transport is None else kept + transport.get_write_buffer_size()

    def release(self) -> None:
        self._share.release()
