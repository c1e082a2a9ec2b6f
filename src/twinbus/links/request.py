"""Asking a store, or the gateway, and waiting for the answer."""

import asyncio
from typing import Any, Protocol

from twinbus.entities.commands import Command, Reply


class Submits(Protocol):
    """A link or the gateway."""

    def submit(self, commands: list[Command]) -> None: ...


class _Answer:
    """A reply that a caller waits for."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def replied(self, reply: Reply, rest: object) -> None:
        if self.future.done():
            return  # whoever asked has gone
        if reply.error is not None:
            self.future.set_exception(reply.error)
        else:
            self.future.set_result(reply.result)


async def ask(whom: Submits, command: Command) -> Any:
    """The result of a command, or its error raised; durable by then."""
    answer = _Answer()
    command.context = (answer, None)
    whom.submit([command])
    return await answer.future
