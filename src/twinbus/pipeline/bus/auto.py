"""A bus that finds out at its first question which operations the namespace has."""

from collections.abc import Iterator, Sequence

from twinbus.errors import ArgumentInvalid, InvalidOperation, NotSupported, ServiceError
from twinbus.pipeline.bus.line import Line
from twinbus.pipeline.bus.protocol import Bus, EntityState
from twinbus.pipeline.bus.sending import PlainBus
from twinbus.pipeline.bus.standard import StandardBus
from twinbus.pipeline.bus.twinbus import TwinbusBus


class AutoBus(PlainBus):
    """Sends as all do; asks as a twinbus is asked, if it is one."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._chosen: Bus | None = None

    def entity(self, path: str) -> EntityState:
        """See `Bus`."""
        return self._choose(path).entity(path)

    def numbers(self, path: str, first: int, end: int, limit: int) -> list[tuple[int, int]]:
        """See `Bus`."""
        return self._choose(path).numbers(path, first, end, limit)

    def browse(self, path: str, first: int, end: int) -> Iterator[list[bytes]]:
        """See `Bus`."""
        return self._choose(path).browse(path, first, end)

    def settle(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        reason: str | None = None,
        description: str | None = None,
    ) -> int:
        """See `Bus`."""
        return self._choose(path).settle(path, ranges, reason, description)

    def _choose(self, path: str) -> Bus:
        if self._chosen is None:
            twinbus = TwinbusBus(self.line)
            try:
                twinbus.entity(path)
                self._chosen = twinbus
            except (NotSupported, InvalidOperation, ArgumentInvalid) as error:
                # Which of them an operation that nobody knows is answered with is not documented;
                # a topic, which has no messages to ask about, is refused either way.
                standard = StandardBus(self.line)
                try:
                    standard.entity(path)
                except ServiceError:
                    raise error from None
                self._chosen = standard
        return self._chosen
