"""All live messages of one subqueue, in order of sequence number.

Ten million messages may wait here, so a message costs one list slot and nothing else: messages lie
in blocks of at most 512, and a block is found by bisecting the blocks' first numbers.  Sequence
numbers have few gaps, so inside a block the distance to the first number is nearly always the
place; where messages were taken out of the middle, it is at least an upper bound to bisect from.

A block also knows the earliest moment at which one of its messages may expire.  Time-to-live thus
costs nothing per message, and a message that is gone leaves nothing behind, however far away its
expiry was.

The table never changes a message.
"""

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import Final

from twinbus.entities.message import ACTIVE, NEVER_MS, Message

BLOCK_SIZE: Final = 512


class Block:
    """Neighbours.  Never empty while it is in the table."""

    __slots__ = ("expires_ms", "messages")

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.expires_ms = NEVER_MS  # no watched message of this block expires earlier


class MessageTable:
    """Messages by sequence number."""

    __slots__ = ("_blocks", "_expiries", "_expiry_order", "_firsts", "count", "last_number")

    def __init__(self) -> None:
        self.count = 0
        self.last_number = 0  # highest number ever put in; what is above it needs no search
        self._blocks: list[Block] = []
        self._firsts: list[int] = []  # of each block, the number of its first message
        # (when, order, block), lazily deleted: counts while it equals the block's own expires_ms.
        self._expiries: list[tuple[int, int, Block]] = []
        self._expiry_order = 0  # breaks ties, so that blocks are never compared

    def append(self, message: Message) -> None:
        """Add a message whose number is higher than any before it."""
        blocks = self._blocks
        if blocks:
            messages = blocks[-1].messages
            if len(messages) < BLOCK_SIZE:
                messages.append(message)
                self.count += 1
                self.last_number = message.sequence_number
                return
        blocks.append(Block([message]))
        self._firsts.append(message.sequence_number)
        self.count += 1
        self.last_number = message.sequence_number

    def insert(self, message: Message) -> None:
        """Add a message anywhere.  Its number must not be in the table."""
        number = message.sequence_number
        if number > self.last_number:
            self.append(message)
            return
        if not self._blocks:
            self._blocks.append(Block([message]))
            self._firsts.append(number)
            self.count = 1
            return
        index = max(bisect_right(self._firsts, number) - 1, 0)
        block = self._blocks[index]
        block.messages.insert(_place(block.messages, number), message)
        self._firsts[index] = block.messages[0].sequence_number
        self.count += 1
        if len(block.messages) > BLOCK_SIZE:
            self._split(index)

    def get(self, number: int) -> Message | None:
        """The message with this number, if it is here."""
        index = bisect_right(self._firsts, number) - 1
        if index < 0:
            return None
        messages = self._blocks[index].messages
        guess = number - self._firsts[index]
        if guess < len(messages):
            message = messages[guess]
            if message.sequence_number == number:
                return message
        place = _place(messages, number)
        if place < len(messages):
            message = messages[place]
            if message.sequence_number == number:
                return message
        return None

    def remove(self, number: int) -> None:
        """Take out a message that is here."""
        index = bisect_right(self._firsts, number) - 1
        messages = self._blocks[index].messages
        place = number - self._firsts[index]
        if place >= len(messages) or messages[place].sequence_number != number:
            place = _place(messages, number)
        self._delete(index, place, place + 1)

    def take_locked(self, locks: list[tuple[int, int]], mono_ms: int) -> list[Message | None]:
        """Take out the messages that these locks hold now; None for a lock that holds none.

        Completing is half of all traffic, and what was received together is mostly completed
        together: neighbours are found by one search and leave at once.
        """
        taken: list[Message | None] = []
        firsts = self._firsts
        blocks = self._blocks
        count = len(locks)
        at = 0
        while at < count:
            number = locks[at][0]
            index = bisect_right(firsts, number) - 1
            start = end = 0
            if index >= 0:
                messages = blocks[index].messages
                start = number - firsts[index]
                if start >= len(messages) or messages[start].sequence_number != number:
                    start = _place(messages, number)
                end = start
                while at < count and end < len(messages):
                    lock = locks[at]
                    message = messages[end]
                    if (
                        message.sequence_number != lock[0]
                        or message.grant != lock[1]
                        or message.locked_until_ms <= mono_ms
                    ):
                        break
                    taken.append(message)
                    at += 1
                    end += 1
            if end > start:
                self._delete(index, start, end)
            else:
                taken.append(None)
                at += 1
        return taken

    def run_from(self, number: int, count: int) -> list[Message]:
        """At most `count` messages from this number on; fewer at the end of a block.

        Empty only when there is none.
        """
        if number > self.last_number or not self._blocks:
            return []
        index = bisect_right(self._firsts, number) - 1
        if index < 0:
            return self._blocks[0].messages[:count]
        messages = self._blocks[index].messages
        place = number - self._firsts[index]
        if place >= len(messages) or messages[place].sequence_number != number:
            place = _place(messages, number)
        if place < len(messages):
            return messages[place : place + count]
        if index + 1 < len(self._blocks):
            return self._blocks[index + 1].messages[:count]
        return []

    def _delete(self, index: int, start: int, end: int) -> None:
        """Take neighbours out of a block."""
        messages = self._blocks[index].messages
        del messages[start:end]
        self.count -= end - start
        if not messages:
            del self._blocks[index]
            del self._firsts[index]
        elif start == 0:
            self._firsts[index] = messages[0].sequence_number

    def _split(self, index: int) -> None:
        block = self._blocks[index]
        half = len(block.messages) // 2
        upper = Block(block.messages[half:])
        del block.messages[half:]
        self._blocks.insert(index + 1, upper)
        self._firsts.insert(index + 1, upper.messages[0].sequence_number)
        if block.expires_ms != NEVER_MS:
            self._expect(upper, block.expires_ms)

    # -- expiry ---------------------------------------------------------------------------------

    def watch_expiry(self, message: Message) -> None:
        """From now on `take_expired` looks at this message, which must be in the table."""
        block = self._blocks[bisect_right(self._firsts, message.sequence_number) - 1]
        if message.expires_ms < block.expires_ms:
            self._expect(block, message.expires_ms)

    def next_expiry_ms(self) -> int:
        """No watched message expires earlier than this."""
        expiries = self._expiries
        while expiries:
            when, _, block = expiries[0]
            if block.messages and block.expires_ms == when:
                return when
            heappop(expiries)
        return NEVER_MS

    def find_expired(self, utc_ms: int, published: int, count: int) -> list[Message]:
        """Free messages whose time is over; about `count`, and the rest next time.

        Who is locked is left out and has to be watched again when the lock ends.  Who is not yet
        published stays watched, so that `next_expiry_ms` may still lie in the past afterwards.
        """
        found: list[Message] = []
        unpublished: list[tuple[int, Block]] = []
        while len(found) < count and self.next_expiry_ms() <= utc_ms:
            _, _, block = heappop(self._expiries)
            earliest = NEVER_MS
            for message in block.messages:
                if message.state != ACTIVE or message.grant != 0:
                    continue
                if message.expires_ms <= utc_ms and message.sequence_number <= published:
                    found.append(message)
                else:
                    earliest = min(earliest, message.expires_ms)
            block.expires_ms = NEVER_MS
            if earliest <= utc_ms:
                unpublished.append((earliest, block))
            elif earliest != NEVER_MS:
                self._expect(block, earliest)
        for earliest, block in unpublished:
            self._expect(block, earliest)
        return found

    def _expect(self, block: Block, when: int) -> None:
        block.expires_ms = when
        self._expiry_order += 1
        heappush(self._expiries, (when, self._expiry_order, block))
        # Entries of blocks that emptied long before their expiry must not pile up.
        if len(self._expiries) > 2 * len(self._blocks) + 64:
            self._expiries = []
            for order, live in enumerate(self._blocks):
                if live.expires_ms != NEVER_MS:
                    self._expiries.append((live.expires_ms, order, live))
            heapify(self._expiries)
            self._expiry_order = len(self._blocks)


def _place(messages: list[Message], number: int) -> int:
    """Where `number` is, or belongs, in a list sorted by sequence number."""
    low = 0
    high = min(len(messages), max(number - messages[0].sequence_number + 1, 0))
    while low < high:
        middle = (low + high) >> 1
        if messages[middle].sequence_number < number:
            low = middle + 1
        else:
            high = middle
    return low
