"""What a syphon knows of messages that it has seen but not got rid of, of one backlog queue.

They are left locked and come again by themselves.  Two things have to be remembered meanwhile:
which sessions wait for one of them, so that nothing overtakes it, and which of them are already at
their destination, so that they are only completed.  Is told the time and talks to nobody.
"""

from collections import OrderedDict
from typing import Final, TypeAlias

Session: TypeAlias = tuple[str, str]  # path and session id

# A held message is back, or in the hands of another syphon, well before this: locks last a minute.
LAPSE_S: Final = 150.0
SENT_COUNT_MAX: Final = 10_000


class Held:
    """Messages that wait for a destination, by their sequence numbers."""

    def __init__(self) -> None:
        self._lapses: OrderedDict[int, float] = OrderedDict()  # in the order of their lapsing
        self._sessions: dict[int, Session] = {}
        self._waiting: dict[Session, set[int]] = {}

    def __len__(self) -> int:
        return len(self._lapses)

    def hold(self, number: int, path: str, session_id: str | None, now: float) -> None:
        self.release(number)
        self._lapses[number] = now + LAPSE_S
        if session_id is not None:
            session = (path, session_id)
            self._sessions[number] = session
            self._waiting.setdefault(session, set()).add(number)

    def release(self, number: int) -> None:
        """It is gone: sent, or a dead letter."""
        self._lapses.pop(number, None)
        session = self._sessions.pop(number, None)
        if session is not None:
            waiting = self._waiting[session]
            waiting.discard(number)
            if not waiting:
                del self._waiting[session]

    def must_wait(self, number: int, path: str, session_id: str | None) -> bool:
        """Whether a message of the same session is held that came before this one."""
        if session_id is None:
            return False
        waiting = self._waiting.get((path, session_id))
        return waiting is not None and min(waiting) < number

    def forget(self, now: float) -> None:
        """What has not come back in time is no longer waited for: another syphon has it."""
        while self._lapses:
            number, lapses = next(iter(self._lapses.items()))
            if lapses > now:
                return
            self.release(number)


class SentBefore:
    """Messages that are at their destination but could not be completed.

    Known by sequence number and enqueued time: a queue that was deleted and made again counts from
    1 again, and a new message must never be taken for an old one.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[int, object], None] = OrderedDict()

    def add(self, number: int, enqueued: object) -> None:
        self._sent[number, enqueued] = None
        if len(self._sent) > SENT_COUNT_MAX:
            self._sent.popitem(last=False)

    def discard(self, number: int, enqueued: object) -> None:
        self._sent.pop((number, enqueued), None)

    def __contains__(self, mark: tuple[int, object]) -> bool:
        return mark in self._sent
