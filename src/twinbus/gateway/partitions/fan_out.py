"""One command to a partitioned entity, several to its partitions, one reply.

    command ─▶ Gather ─┬▶ a command to partition 2 ─▶ reply ─┐
                       ├▶ a command to partition 7 ─▶ reply ─┼▶ all there: `gathered` ─▶ reply
                       └▶ a command to partition 9 ─▶ reply ─┘

A gather may ask in several rounds; each round is over when all of its replies are there.  It must
never answer twice, and never leave its command unanswered: every link answers everything.

What a store hands out in a reply is its own to change from the next command on, so whatever is kept
until other replies come is copied (`Message.copy`).
"""

from collections.abc import Callable
from typing import Final, Protocol

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Delivered, Reply, Send
from twinbus.entities.partitions import PARTITION_COUNT, shown_name
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.links.store_link import DOWN, StoreLink

NAME_CHARS_MAX: Final = 64  # of an entity's name in an error


class Ticking(Protocol):
    """What wants to hear that time passes."""

    def tick(self) -> None:
        """A second or so has passed."""


class Losing(Protocol):
    """A receiver that can lose some of the partitions it receives from."""

    def lose(self, is_lost: Callable[[Entity, int], bool], error: ServiceError) -> None:
        """Receive no more from these partitions, until they can be opened again."""


class Routes(Protocol):
    """The part of the gateway that routing needs."""

    @property
    def links(self) -> list[StoreLink]:
        """The stores."""

    @property
    def clock(self) -> Clock:
        """What tells the time."""

    @property
    def ticking(self) -> set[Ticking]:
        """Whom the gateway calls about once a second."""

    @property
    def receivers(self) -> set[Losing]:
        """All receivers of partitioned entities."""

    def answer(self, reply: Reply) -> None:
        """Give a reply to whoever asked."""

    def divert(self, entity: Entity, part: Part, command: Send) -> bool:
        """Take a send for a store that is not well elsewhere; True: it will be answered."""


class Gather:
    """Base: a command that takes several commands to the partitions."""

    __slots__ = ("_awaited", "_batches", "command", "entity", "gateway", "replies")

    def __init__(self, gateway: Routes, entity: Entity, command: Command) -> None:
        self.gateway = gateway
        self.entity = entity
        self.command = command
        self.replies: list[Reply | None] = []  # of this round, in the order of asking
        self._batches: dict[int, list[Command]] = {}  # by store
        self._awaited = 0

    def ask(self, partition: int, command: Command) -> None:
        """Ask this in the coming round."""
        part = self.entity.parts[partition]
        command.entity_id = part.entity_id
        command.context = (self, len(self.replies))
        self.replies.append(None)
        self._batches.setdefault(part.store, []).append(command)

    def begin(self) -> None:
        """Begin the round; what belongs to one store goes in one piece."""
        if not self.replies:
            self.gathered([])
            return
        batches = self._batches
        self._batches = {}
        self._awaited = len(self.replies)
        for store, commands in batches.items():
            self.gateway.links[store].submit(commands)

    def expect(self, count: int) -> None:
        """Begin a round of commands that go their own way, with (self, index) as their context."""
        self.replies = [None] * count
        self._awaited = count

    def replied(self, reply: Reply, rest: object) -> None:
        """One of the partitions has answered."""
        assert isinstance(rest, int)
        self.replies[rest] = reply
        self._awaited -= 1
        if self._awaited == 0:
            replies = [each for each in self.replies if each is not None]
            self.replies = []
            self.gathered(replies)

    def gathered(self, replies: list[Reply]) -> None:
        """The round is over: answer, or begin another."""
        raise NotImplementedError

    def answer(self, result: object, error: ServiceError | None = None) -> None:
        self.gateway.answer(Reply(self.command, result, error))

    def answer_in_order(self, places: list[list[int]], replies: list[Reply]) -> None:
        """Answer with one value for each place; each reply has those of some of the places."""
        error = first_error(replies)
        if error is not None:
            self.answer(None, error)
            return
        values: list[object] = [None] * sum([len(each) for each in places])
        for mine, reply in zip(places, replies, strict=True):
            assert isinstance(reply.result, list)
            for place, value in zip(mine, reply.result, strict=True):
                values[place] = value
        self.answer(values)


def forward(gateway: Routes, part: Part, command: Command) -> None:
    """Let one partition answer the command itself."""
    command.entity_id = part.entity_id
    gateway.links[part.store].submit([command])


def first_error(replies: list[Reply]) -> ServiceError | None:
    """The first refusal among replies; a store that is down says less than any other."""
    found: ServiceError | None = None
    for reply in replies:
        error = reply.error
        if error is not None and (found is None or isinstance(found, Unavailable)):
            found = error
    return found


def partitions_up(gateway: Routes, entity: Entity) -> list[int]:
    """The partitions that can be asked; Unavailable when there are none."""
    links = gateway.links
    found = [part.partition for part in entity.parts if links[part.store].health != DOWN]
    if not found:
        raise all_down(entity)
    return found


def all_down(entity: Entity) -> Unavailable:
    return Unavailable(
        f"All {PARTITION_COUNT} partitions of '{shown(entity)}' are down. Try again later."
    )


def partition_down(entity: Entity, partition: int) -> Unavailable:
    return Unavailable(f"Partition {partition} of '{shown(entity)}' is down. Try again later.")


def shown(entity: Entity) -> str:
    """An entity's name for people."""
    return shown_name(entity.name)[:NAME_CHARS_MAX]


def copies_of(delivered: list[Delivered]) -> list[Delivered]:
    """What a partition has handed out, to be kept."""
    return [Delivered(d.message.copy(), d.body, d.locked_until_utc_ms) for d in delivered]
