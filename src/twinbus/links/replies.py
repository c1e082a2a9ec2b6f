"""Replies find who asked.

A command's context is nothing, or whoever asked together with what he wanted to remember.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

from twinbus.entities.commands import Command, Reply
from twinbus.errors import ServiceError
from twinbus.links.store_link import StoreLink


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


def submit_admitted(
    link: StoreLink,
    commands: list[Command],
    refusal: Callable[[Command], ServiceError | None],
) -> None:
    """Pass on what is not refused; who is refused hears so at once."""
    admitted: list[Command] = []
    refused: list[Reply] = []
    for command in commands:
        error = refusal(command)
        if error is None:
            admitted.append(command)
        else:
            refused.append(Reply(command, None, error))
    if admitted:
        link.submit(admitted)
    dispatch_replies(refused)
