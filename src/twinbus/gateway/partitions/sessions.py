"""Accepting a session of a partitioned entity.

A named session is in the partition of its id.  For the next available one, all partitions that are
up are asked; the first lock wins, and later ones are given back at once.

    AnySession ─┬▶ wait in partition 0 ─┐
                ├▶ wait in partition 1 ─┼▶ the first lock, or the error when all have given up
                └▶ …                    ┘

Must never keep a lock that was not handed out: the session would be blocked until it expires.
"""

from twinbus.entities.partitions import hash_key
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import OperationTimeout, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.gateway.partitions.fan_out import Routes, partitions_up
from twinbus.links.store_link import DOWN, Accepting, Answer, StoreLink


def accept_session(
    gateway: Routes,
    entity: Entity,
    session_id: str | None,
    timeout_ms: int,
    grant: int,
    then: Answer,
) -> Accepting:
    """Lock a session of a partitioned entity; `then` hears of it at once or later (broker.py)."""
    links = gateway.links
    if session_id is not None:
        part = entity.parts[hash_key(session_id)]
        if links[part.store].health == DOWN:
            raise Unavailable(
                f"Partition {part.partition}, where this session is, is down. Try again later."
            )
        return links[part.store].accept_session(part.entity_id, session_id, timeout_ms, grant, then)
    waits = AnySession(then)
    waits.start(gateway, entity, timeout_ms)
    return waits


class AnySession:
    """A wait for whichever session comes first (Accepting)."""

    __slots__ = ("_errors", "_is_over", "_is_starting", "_then", "_waits")

    def __init__(self, then: Answer) -> None:
        self._then = then
        self._waits: list[_PartWait] = []
        self._errors: list[ServiceError] = []  # of the partitions that have given up
        self._is_starting = True
        self._is_over = False

    def start(self, gateway: Routes, entity: Entity, timeout_ms: int) -> None:
        """Ask the partitions, until one has a session at once."""
        for partition in partitions_up(gateway, entity):
            if self._is_over:
                return
            part = entity.parts[partition]
            wait = _PartWait(self, gateway.links[part.store], part)
            self._waits.append(wait)
            try:
                wait.begin(timeout_ms)
            except Unavailable as error:
                self._errors.append(error)
            except ServiceError:
                self.cancel()
                raise
        self._is_starting = False
        self._give_up_if_all_have()

    def cancel(self) -> None:
        """The wait is given up: there will be no answer."""
        self._is_over = True
        for wait in self._waits:
            wait.cancel()

    def accepted(self, lock: SessionLock) -> bool:
        """A partition has a session; False: it comes too late."""
        if self._is_over:
            return False
        self.cancel()
        self._then(lock)
        return True

    def refused(self, error: ServiceError) -> None:
        """A partition has given up."""
        self._errors.append(error)
        self._give_up_if_all_have()

    def _give_up_if_all_have(self) -> None:
        if self._is_starting or self._is_over or len(self._errors) < len(self._waits):
            return
        self._is_over = True
        told = self._errors[0]
        for error in self._errors:
            if isinstance(error, OperationTimeout):
                told = error  # they were asked and had none: that says more than those that failed
        self._then(told)


class _PartWait:
    """The wait in one partition."""

    __slots__ = ("_accepting", "_link", "_owner", "_part")

    def __init__(self, owner: AnySession, link: StoreLink, part: Part) -> None:
        self._owner = owner
        self._link = link
        self._part = part
        self._accepting: Accepting | None = None

    def begin(self, timeout_ms: int) -> None:
        self._accepting = self._link.accept_session(
            self._part.entity_id, None, timeout_ms, 0, self._answered
        )

    def cancel(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()

    def _answered(self, result: SessionLock | ServiceError) -> None:
        if isinstance(result, ServiceError):
            self._owner.refused(result)
        elif not self._owner.accepted(result):
            self._link.release_session(self._part.entity_id, result)
