"""A message on its way from a topic to subscriptions: shared, or changed for one of them."""

from datetime import timedelta
from typing import Final

from twinbus.entities.fields import Changes, MessageCodec
from twinbus.entities.message import NewMessage, Overlay, merge_overlays, overlay_bytes
from twinbus.entities.queue import Queue
from twinbus.limits import DEAD_LETTER_TEXT_CHARS_MAX

COPY_BYTES: Final = 128  # what a copy takes in the log without body and texts, at most
_MILLISECOND: Final = timedelta(milliseconds=1)


class Letter:
    """A message as some subscriptions get it."""

    __slots__ = ("is_dead", "is_own", "messages", "size_bytes")

    def __init__(self, message: NewMessage, is_own: bool, is_dead: bool) -> None:
        self.messages = [message]  # just the one, in the form that `enqueue` takes
        self.is_own = is_own  # for one subscription only: the body is shared with no other copy
        self.is_dead = is_dead  # it goes to the dead-letter queue right away
        self.size_bytes = _size_bytes(message, is_own)  # of a copy in the log, at most


def _size_bytes(message: NewMessage, is_own: bool) -> int:
    size = COPY_BYTES
    if is_own:
        size += len(message.body)
    if message.session_id is not None:
        size += 4 * len(message.session_id)  # UTF-8 takes up to four bytes a character
    return size + overlay_bytes(message.overlay)


class Copy:
    """A letter for one subscription, decided and not yet there."""

    __slots__ = ("letter", "subscription")

    def __init__(self, subscription: Queue, letter: Letter) -> None:
        self.subscription = subscription
        self.letter = letter


def pieces(copies: list[Copy], size_bytes_max: int) -> list[list[Copy]]:
    """Mostly one.  Only one subscription alone, with many rules, makes more than fits into one:
    should a crash come between such pieces, it gets those before the crash once more."""
    pieces: list[list[Copy]] = [[]]
    size_bytes = 0
    for copy in copies:
        if size_bytes > size_bytes_max:
            pieces.append([])
            size_bytes = 0
        pieces[-1].append(copy)
        size_bytes += copy.letter.size_bytes
    return pieces


def with_key(codec: MessageCodec, message: NewMessage, session_id: str | None) -> NewMessage:
    """The same message with its session id, which is looked for if it is not known."""
    if session_id is None:
        session_id = codec.read_keys(message.body)[1]
    keyed = NewMessage(message.body, message.time_to_live_ms, session_id=session_id)
    keyed.overlay = message.overlay
    return keyed


def as_changed(codec: MessageCodec, message: NewMessage, changes: Changes) -> Letter:
    """The message as an action leaves it."""
    made = NewMessage(codec.rewrite(message.body, changes), message.time_to_live_ms)
    made.overlay = message.overlay
    changed = changes.system.get("timetolive")
    if isinstance(changed, timedelta):
        made.time_to_live_ms = min(made.time_to_live_ms, changed // _MILLISECOND)
    return Letter(made, True, False)


def as_dead(message: NewMessage, reason: str, text: str) -> Letter:
    """The message for the dead-letter queue."""
    made = NewMessage(message.body, message.time_to_live_ms)
    overlay = Overlay(reason, text[:DEAD_LETTER_TEXT_CHARS_MAX])
    made.overlay = merge_overlays(message.overlay, overlay)
    return Letter(made, True, True)
