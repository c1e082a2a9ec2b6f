"""Server-busy asks for ten seconds of quiet, which the SDK's own retries would break (A-2, P-8).

As blocking/_busy.py has it, for the SDK's async links.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Final

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError


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


def _can_raise() -> bool:
    """Whether the installed SDK has the method as expected; if not, it is left as it is."""
    for kind in (ServiceBusSender, ServiceBusReceiver):
        method = getattr(kind, "_handle_exception", None)
        if not inspect.iscoroutinefunction(method):
            return False
        if list(inspect.signature(method).parameters) != ["self", "exception"]:
            return False
    return True


CAN_RAISE: Final = _can_raise()
