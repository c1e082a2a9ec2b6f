"""The narrow interface between a gateway and the brokers: one `StoreLink` for each store.

    gateway ── StoreLink ─▶ Broker           the store is run in this process
                         └▶ RemoteStore      it is run by a broker process, behind a socket

Everything that is asked of a store is a command (entities/commands.py), a receiver, or a wait for a
session.  Numbers of entities are those of the store.  Replies come in the order in which they
become true, through the command's context.  A store that is down answers at once: Unavailable.
"""

from collections.abc import Callable
from typing import Final, Protocol

from twinbus.clock import Clock
from twinbus.entities.commands import Command
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError
from twinbus.links.sink import Sink
from twinbus.links.transactions import StoreTransactions

# The health of a store.
UP: Final = 0
SLOW: Final = 1  # it takes commands, and takes too long over them
DOWN: Final = 2

# Who asked for a session is told which one it has, or why it has none.
Answer = Callable[[SessionLock | ServiceError], None]


class ReceiverDescription:
    """What a receiver is to receive, and how."""

    __slots__ = ("entity_id", "is_exclusive", "receive_mode", "relays", "session", "subqueue")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        receive_mode: int,
        session: SessionLock | None = None,
        is_exclusive: bool = True,
        relays: bool = False,
    ) -> None:
        self.entity_id = entity_id
        self.subqueue = subqueue
        self.receive_mode = receive_mode
        self.session = session  # whose messages it gets, in an entity with sessions
        self.is_exclusive = is_exclusive  # whether closing it releases the session
        self.relays = relays  # the gateway's own, which receives what is to be forwarded

    def of(self, entity_id: int) -> "ReceiverDescription":
        """The same of another entity: of a part, or by the number that a store knows."""
        return ReceiverDescription(
            entity_id,
            self.subqueue,
            self.receive_mode,
            self.session,
            self.is_exclusive,
            self.relays,
        )


class Receiving(Protocol):
    """A gateway's handle of one receiver."""

    @property
    def session(self) -> SessionLock | None:
        """Whose messages it gets, in an entity with sessions."""

    def set_credit(self, credit: int, drain: bool) -> None:
        """So many more messages may come; with `drain`, what is not there is not waited for."""

    def resume(self) -> None:
        """The sink may have room again."""

    def close(self) -> None:
        """Nothing more is to come; locks run on."""


class Accepting(Protocol):
    """A gateway's handle of a wait for a session."""

    def cancel(self) -> None:
        """The wait is given up: there will be no answer."""


class StoreLink(Protocol):
    """One store, wherever it is run."""

    @property
    def health(self) -> int:
        """UP, SLOW or DOWN."""

    @property
    def pending_bytes(self) -> int:
        """Of sends on their way to the disk; a gateway reads no more while these are too many."""

    @property
    def open_count(self) -> int:
        """Commands that wait for their answer."""

    def submit(self, commands: list[Command]) -> None:
        """Decide on these, in this order."""

    def turn_if_alone(self, client: object) -> None:
        """A client has said what it had to say; if it talks alone, nobody is waited for."""

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when everything submitted until now is durable and answered."""

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        """Receive from a part of an entity.  A refusal is raised, or comes as `sink.lost`."""

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        """Lock a session, the next available one if none is named (broker.py)."""

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        """A lock that was given for a receiver which could not be opened."""

    def transactions(self, clock: Clock, prefix: bytes) -> StoreTransactions:
        """The transactions of one connection; `prefix` begins the ids of all of them."""
