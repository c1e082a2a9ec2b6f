"""A delivery whose messages belong to several partitions."""

from collections.abc import Callable
from typing import Final, TypeAlias

from twinbus.entities.commands import Reply, Send
from twinbus.errors import ServiceError
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.fan_out import Gather, Routes

SEVERAL: Final = -2  # in place of a partition: the messages belong to several

Route: TypeAlias = Callable[[Routes, Entity, Send], None]


class SplitSend(Gather):
    """Each part goes where it belongs; if one is refused, the client sends all of them again."""

    __slots__ = ("_places", "_route", "_sends")

    def __init__(
        self, gateway: Routes, entity: Entity, command: Send, partitions: list[int], route: Route
    ) -> None:
        """`partitions` has one for each message; `route` sends what belongs to one of them."""
        super().__init__(gateway, entity, command)
        self._route = route
        self._places: list[list[int]] = []  # for each send, where its messages were
        self._sends: list[Send] = []
        places: dict[int, list[int]] = {}
        for place, partition in enumerate(partitions):
            places.setdefault(partition, []).append(place)
        for partition, found in places.items():
            send = Send(0, [command.messages[place] for place in found])
            send.partition = partition
            self._places.append(found)
            self._sends.append(send)

    def start(self) -> None:
        self.expect(len(self._sends))
        for index, send in enumerate(self._sends):
            send.context = (self, index)
            try:
                self._route(self.gateway, self.entity, send)
            except ServiceError as error:
                self.replied(Reply(send, None, error), index)

    def gathered(self, replies: list[Reply]) -> None:
        self.answer_in_order(self._places, replies)
