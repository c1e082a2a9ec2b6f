"""Commands about many messages at once, chosen by what they are, and what became of them."""

from typing import Final

from twinbus.entities.commands import Command, Delivered
from twinbus.entities.message import NEVER_MS, Overlay
from twinbus.limits import PEEK_RESPONSE_BYTES_MAX

# Above every sequence number there can be (partitions.py), and a machine word when compiled.
NUMBERS_END: Final = 1 << 61


class Selection:
    """Which messages of a part a request is about; every condition must hold."""

    __slots__ = (
        "before_ms",
        "expression",
        "from_sequence_number",
        "session_id",
        "states",
        "to_sequence_number",
    )

    def __init__(self) -> None:
        self.from_sequence_number = 0
        self.to_sequence_number = NUMBERS_END  # this one is not meant any more
        self.before_ms = NEVER_MS  # enqueued before this (UTC)
        self.session_id: str | None = None
        self.states: list[int] = []  # empty: any
        self.expression = ""  # a SQL filter; empty: none


class SelectionCommand(Command):
    """Base: about many messages of one part, `count` at most.  Reply: Selected."""

    __slots__ = ("count", "selection", "subqueue")

    def __init__(self, entity_id: int, subqueue: int, selection: Selection, count: int) -> None:
        super().__init__(entity_id)
        self.subqueue = subqueue
        self.selection = selection
        self.count = count


class DeleteMessages(SelectionCommand):
    """Remove messages that nobody has locked, oldest first.

    The SDKs' batch delete asks for active messages before a time; `selection` says more (ours).
    """

    __slots__ = ()


class Browse(SelectionCommand):
    """Ours: peek at what a selection says, as much of it as `maximum_bytes` says."""

    __slots__ = ("is_range", "maximum_bytes")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        selection: Selection,
        count: int,
        maximum_bytes: int = PEEK_RESPONSE_BYTES_MAX,
        is_range: bool = False,
    ) -> None:
        super().__init__(entity_id, subqueue, selection, count)
        self.maximum_bytes = maximum_bytes
        self.is_range = is_range  # nothing in it may be passed over, or it would seem to be gone


class ListNumbers(SelectionCommand):
    """Ours: which sequence numbers are there."""

    __slots__ = ()


class SettleRanges(SelectionCommand):
    """Ours: delete what is there within ranges of numbers and nobody has locked.

    With an overlay it is dead-lettered instead.  The selection says which states are meant.
    """

    __slots__ = ("bounds", "overlay")

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        selection: Selection,
        count: int,
        bounds: list[int] | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        super().__init__(entity_id, subqueue, selection, count)
        self.bounds: list[int] = bounds or []  # first, end, first, end, …; ascending
        self.overlay = overlay


class Undefer(SelectionCommand):
    """Ours: deferred messages become active again in their old place."""

    __slots__ = ("sequence_numbers",)

    def __init__(
        self,
        entity_id: int,
        subqueue: int,
        selection: Selection,
        count: int,
        sequence_numbers: list[int] | None = None,
    ) -> None:
        super().__init__(entity_id, subqueue, selection, count)
        # Just these, all or none, if there are any; then the selection does not count.
        self.sequence_numbers: list[int] = sequence_numbers or []


class Resubmit(SelectionCommand):
    """Ours: dead letters go back to the entity they are in, as new messages."""

    __slots__ = ()


class Selected:
    """What became of a request about many messages."""

    __slots__ = ("bounds", "count", "delivered", "next_sequence_number", "units")

    def __init__(self) -> None:
        self.count = 0
        self.units = 0  # of what was settled: begun 64 KiB, for the meter
        self.delivered: list[Delivered] = []  # what was browsed
        self.bounds: list[int] = []  # runs of numbers: first, end, first, end, …
        self.next_sequence_number = 0  # where to go on; 0 = everything has been looked at
