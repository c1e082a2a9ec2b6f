"""Server-busy asks for ten seconds of quiet, which the SDK's own retries would break (A-2, P-8).

As blocking/_busy.py has it, for the SDK's async links.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from twinbus.pairing.blocking._busy import has_judge


def raise_busy(link: ServiceBusSender | ServiceBusReceiver) -> None:
    """Have the link raise server-busy at once, from now on."""
    if not CAN_RAISE:
        return
    # SLF001: the only place where one error can be told.
    judge: Callable[..., Awaitable[ServiceBusError]] = link._handle_exception  # noqa: SLF001

    async def judge_or_raise(exception: BaseException) -> ServiceBusError:
        error = await judge(exception)
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        return error

    link._handle_exception = judge_or_raise  # type: ignore[method-assign]  # noqa: SLF001


CAN_RAISE: Final = has_judge((ServiceBusSender, ServiceBusReceiver), is_async=True)
