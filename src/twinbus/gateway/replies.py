"""Replies find who asked.

A command's context is nothing, or whoever asked together with what he wanted to remember.
"""

from typing import Any, Protocol, cast

from twinbus.entities.commands import Reply


class Asked(Protocol):
    """Who gets a reply, with what it wanted to remember."""

    def replied(self, reply: Reply, rest: Any) -> None: ...


def dispatch_replies(replies: list[Reply]) -> None:
    """Give each reply to whoever asked."""
    for reply in replies:
        context = reply.command.context
        if context is not None:
            asked, rest = cast(tuple[Asked, object], context)
            asked.replied(reply, rest)
