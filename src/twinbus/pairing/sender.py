"""What the paired senders of both shells share: everything that does not wait.

Links are opened when they are needed: a sender can be made, entered and used while the primary is
down.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from twinbus.pairing.core import Pairing
from twinbus.pairing.sending import SenderState

Link = TypeVar("Link")  # a shell's SteadySender


@dataclass(frozen=True, slots=True)
class Shared:
    """What a client gives to all of its senders."""

    pairing: Pairing
    lock: AbstractContextManager[Any]  # the pairing's
    dispatch: Callable[[], None]
    closing: Any  # the shell's: where SDK objects are closed
    make_backlog: Callable[[str], Any]
    backlog_limit_bytes: int
    forget: Callable[[Any], None]  # a sender that is closed, where its client keeps it alive


class PairedSenderBase(Generic[Link]):
    """A link to the primary, and one to each backlog queue in use."""

    _new_link: Callable[..., Link]

    def __init__(self, shared: Shared, make_primary: Callable[[str | None], Any]) -> None:
        """`make_primary` is given the client identifier that a replaced sender had."""
        first = make_primary(None)
        self.entity_name: str = first.entity_name
        self.fully_qualified_namespace: str = first.fully_qualified_namespace
        self.client_identifier: str = first.client_identifier
        self._shared = shared
        self._pairing = shared.pairing
        self._lock = shared.lock
        self._dispatch = shared.dispatch
        self._primary = self._new_link(
            lambda: make_primary(self.client_identifier),
            shared.closing,
            first,
            shared.pairing.learn_namespace,
        )
        self._backlog: dict[str, Link] = {}  # by queue
        self._state = SenderState(self.entity_name)
        self._state.backlog_limit_bytes = shared.backlog_limit_bytes
        self._is_closed = False
        with self._lock:  # now, so that status() and force_failover() know of it
            self._entity = self._pairing.entity(self.entity_name)

    def __str__(self) -> str:
        return f"Paired sender client id: {self.client_identifier}, entity: {self.entity_name}"

    def _backlog_link(self, queue: str) -> Link:
        shared = self._shared
        with self._lock:
            found = self._backlog.get(queue)
            if found is None:
                found = self._new_link(lambda: shared.make_backlog(queue), shared.closing)
                self._backlog[queue] = found
        return found

    def _check_call(self, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._check_live()

    def _check_live(self) -> None:
        with self._lock:
            self._pairing.check()  # that the pair is over says more
        if self._is_closed:
            raise ValueError(
                "The sender has already been closed. Please use the paired client to get a new one."
            )
