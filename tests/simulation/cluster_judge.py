"""The judge of a simulated cluster: what clients were told, and what that obliges the bus to.

Every attempt to send is a message of its own: a client that tries again sends a new body.  So the
judge knows of each attempt what must become of it:

    acknowledged   it is there, once in every place it was sent to, until it is completed
    refused        it is nowhere, ever: whoever says "nothing was stored" must be right
    unknown        it is there or not, in each place at most once

A completion that was acknowledged is final: no lock that is given later hands the message out.
"""

from collections.abc import Sequence
from typing import Final

from twinbus.entities.commands import ABANDON, COMPLETE, RELEASE
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message
from twinbus.entities.partitions import hash_key, partition_of

UNKNOWN: Final = "unknown"
ACKNOWLEDGED: Final = "acknowledged"
REFUSED: Final = "refused"
NEVER: Final = 1 << 100


class Place:
    """A queue or subscription, where messages come to rest."""

    def __init__(self, name: str, is_partitioned: bool, has_sessions: bool) -> None:
        self.name = name
        self.is_partitioned = is_partitioned
        self.has_sessions = has_sessions


class Attempt:
    """One try to send one message."""

    __slots__ = ("entity", "is_retry", "is_scheduled", "key", "number", "state", "submitted_ms")

    def __init__(self, entity: str, key: str | None, is_retry: bool, is_scheduled: bool) -> None:
        self.entity = entity
        self.key = key  # session id or partition key
        self.is_retry = is_retry
        self.is_scheduled = is_scheduled
        self.state = UNKNOWN
        self.number = 0  # as the sender was told
        self.submitted_ms = 0


class Copy:
    """A message in one of the places it was sent to."""

    __slots__ = (
        "attempt",
        "completing",
        "deliveries",
        "gone_from_grant",
        "held_by",
        "held_from_loss",
        "held_until_utc_ms",
        "is_found",
        "is_settled",
        "name",
        "number",
        "place",
    )

    def __init__(self, name: str, place: Place, attempt: Attempt) -> None:
        self.name = name
        self.place = place
        self.attempt = attempt
        self.number = 0  # as it was delivered
        self.deliveries = 0
        self.gone_from_grant = NEVER  # completed: no lock from here on is given for it
        self.completing = 0  # completions that were asked for and not refused
        self.is_settled = False  # somebody has asked to settle it, in whatever way
        self.is_found = False  # at the end
        self.held_by: object = None
        self.held_until_utc_ms = 0
        self.held_from_loss = 0

    @property
    def may_be_gone(self) -> bool:
        return self.completing > 0 or self.gone_from_grant != NEVER

    def __repr__(self) -> str:
        return f"message {self.name} in {self.place.name}"


class Hold:
    """One receiver's time with a session, in which order is strict."""

    def __init__(self, session_id: str, lock: tuple[int, int]) -> None:
        self.session_id = session_id
        self.lock = lock  # its grant, and the number of the receiver at the broker
        self.last_number = 0
        self.seen: set[Copy] = set()
        self.returned: set[Copy] = set()  # given back by the holder: they come again


class SessionStates:
    """What the state of one session may be."""

    def __init__(self) -> None:
        self.possible: dict[int, bytes | None] = {0: None}
        self._count = 0

    def setting(self, state: bytes) -> int:
        self._count += 1
        self.possible[self._count] = state
        return self._count

    def set(self, number: int) -> None:
        self.possible = {n: state for n, state in self.possible.items() if n >= number}

    def refused(self, number: int) -> None:
        self.possible.pop(number, None)


class Judge:
    """Keeps what clients were told, and looks for contradictions."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = {place.name: place for place in places}
        self.attempts: list[Attempt] = []
        self.copies: dict[tuple[str, int], Copy] = {}
        self.by_session: dict[tuple[str, str], list[Copy]] = {}
        self._numbers: dict[tuple[str, int, int], Copy] = {}
        # Of each session the latest that anybody has got, and its number.
        self._latest: dict[tuple[str, str], tuple[int, Copy]] = {}
        self.utc_is_steady = True  # until somebody sets the clock
        self.stale_count = 0
        self.delivery_count = 0

    # -- sending -----------------------------------------------------------------------------------

    def sending(
        self, entity: str, places: list[str], key: str | None, is_retry: bool, is_scheduled: bool
    ) -> int:
        """Somebody is about to send a message; its number names it."""
        name = len(self.attempts)
        attempt = Attempt(entity, key, is_retry, is_scheduled)
        self.attempts.append(attempt)
        for each in places:
            copy = Copy(str(name), self.places[each], attempt)
            self.copies[each, name] = copy
            if key is not None and copy.place.has_sessions:
                self.by_session.setdefault((each, key), []).append(copy)
        return name

    def sending_again(self, names: list[int]) -> None:
        """The same messages once more: they may come late now, but not twice."""
        for name in names:
            self.attempts[name].is_retry = True

    def sent(self, names: list[int], numbers: list[int]) -> None:
        assert len(names) == len(numbers)
        for name, number in zip(names, numbers, strict=True):
            attempt = self.attempts[name]
            attempt.state = ACKNOWLEDGED
            attempt.number = number or attempt.number  # 0: it is in a journal, or a duplicate

    def refused(self, names: list[int]) -> None:
        for name in names:
            self.attempts[name].state = REFUSED

    # -- receiving ---------------------------------------------------------------------------------

    def delivered(
        self,
        place: str,
        subqueue: int,
        message: Message,
        name: int,
        until_utc_ms: int,
        now_utc_ms: int,
        loss: int,
        holder: object,
    ) -> Copy:
        """A message has come to somebody; `loss` counts how often its store was lost so far."""
        copy = self.copies.get((place, name))
        assert copy is not None, f"message {name} was never sent to {place}"
        attempt = copy.attempt
        assert attempt.state != REFUSED, f"{copy} was refused, and is delivered"
        number = message.sequence_number
        self._check_number(copy, subqueue, number)
        is_gone = copy.gone_from_grant != NEVER
        if message.grant >= copy.gone_from_grant or (is_gone and not until_utc_ms):
            raise AssertionError(f"{copy} was completed, and is delivered again")
        if is_gone:
            self.stale_count += 1  # locked before it was completed by somebody else
        elif until_utc_ms:
            is_held = (
                self.utc_is_steady
                and copy.held_by is not None
                and copy.held_from_loss == loss
                and now_utc_ms < copy.held_until_utc_ms
            )
            assert not is_held, f"{copy} is locked, and is delivered to somebody else"
            copy.held_by = holder
            copy.held_until_utc_ms = until_utc_ms
            copy.held_from_loss = loss
        copy.deliveries += 1
        self.delivery_count += 1
        return copy

    def _check_number(self, copy: Copy, subqueue: int, number: int) -> None:
        key = (copy.place.name, subqueue, number)
        owner = self._numbers.setdefault(key, copy)
        assert owner is copy, f"{copy} and {owner} have the same number"
        attempt = copy.attempt
        if copy.place.is_partitioned and attempt.key is not None:
            assert partition_of(number) == hash_key(attempt.key), f"{copy} is in a wrong partition"
        if not attempt.is_scheduled and subqueue == MAIN:
            assert copy.number in (0, number), f"{copy} is there twice"
            copy.number = number
            if attempt.number and attempt.entity == copy.place.name:
                assert attempt.number == number, f"{copy} has another number than was told"

    def delivered_in_session(self, hold: Hold, copy: Copy, number: int) -> None:
        """The same, to the holder of a session: nothing is out of order or left out."""
        assert copy.attempt.key == hold.session_id, f"{copy} is of another session"
        if copy in hold.seen:
            assert copy in hold.returned, f"{copy} comes twice to the holder of its session"
            hold.returned.discard(copy)
            return  # later ones may have been on their way when it was given back
        assert number > hold.last_number, f"{copy} comes out of order in its session"
        hold.last_number = number
        hold.seen.add(copy)
        self._check_first(hold, copy, number)
        for other in self.by_session[copy.place.name, hold.session_id]:
            told = other.number or other.attempt.number
            if (
                other.attempt.state == ACKNOWLEDGED
                and 0 < told < number
                and not other.is_settled
                and not other.attempt.is_scheduled
                and other not in hold.seen
            ):
                raise AssertionError(f"{copy} comes before {other} of the same session")

    def _check_first(self, hold: Hold, copy: Copy, number: int) -> None:
        """Whoever held the session: no message is seen for the first time after a later one.

        That holds for what came by a journal, too, whose number nobody has been told.
        """
        key = (copy.place.name, hold.session_id)
        latest = self._latest.get(key)
        if latest is None or latest[0] < number:
            self._latest[key] = (number, copy)
        elif copy.deliveries == 1:
            raise AssertionError(f"{copy} comes first after {latest[1]} of the same session")

    def settling(self, copy: Copy, outcome: int, hold: Hold | None) -> None:
        """Somebody asks to settle a message; whatever comes of it, its lock counts no more."""
        copy.is_settled = True
        copy.held_by = None
        if outcome == COMPLETE:
            copy.completing += 1
        if hold is not None and outcome in (ABANDON, RELEASE):
            hold.returned.add(copy)

    def settled(self, copy: Copy, outcome: int, grant: int) -> None:
        """It was acknowledged."""
        if outcome == COMPLETE:
            copy.gone_from_grant = min(copy.gone_from_grant, grant + 1)

    def not_settled(self, copy: Copy, outcome: int) -> None:
        """It was refused: the lock had been lost, and nothing has changed."""
        if outcome == COMPLETE:
            copy.completing -= 1

    def removed(self, copy: Copy, next_grant: int) -> None:
        """It was received and deleted, or a cancelled schedule."""
        copy.gone_from_grant = min(copy.gone_from_grant, next_grant)

    # -- the end -----------------------------------------------------------------------------------

    def found(self, copy: Copy) -> None:
        """It was there when everything was fetched at the end."""
        assert not copy.is_found, f"{copy} is there twice"
        copy.is_found = True

    def finish(self) -> None:
        """Everything has been fetched: what is missing?"""
        for copy in self.copies.values():
            if copy.attempt.state == ACKNOWLEDGED and not copy.may_be_gone:
                assert copy.is_found, f"{copy} was acknowledged, and is lost"
        self._check_order()

    def _check_order(self) -> None:
        """What was sent with one key, and taken at the first try, has its numbers in that order."""
        last: dict[tuple[str, str], tuple[int, Copy]] = {}
        for copy in self.copies.values():
            attempt = copy.attempt
            plain = not attempt.is_retry and not attempt.is_scheduled
            if attempt.state != ACKNOWLEDGED or attempt.key is None or not plain:
                continue
            number = copy.number
            if number == 0:
                continue  # it was never in the main part, as far as anybody has seen
            key = (copy.place.name, attempt.key)
            before = last.get(key)
            if before is not None:
                assert before[0] < number, f"{copy} overtook {before[1]} of the same key"
            last[key] = (number, copy)
