"""Two answers of the server that are for the pair, before the SDK tries again by itself.

As blocking/_refusals.py has it, for the SDK's async links.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from twinbus.pairing.blocking._refusals import Tries, has_judge


def raise_refusals(link: ServiceBusSender | ServiceBusReceiver) -> Tries:
    """Have the link raise these at once, from now on."""
    tries = Tries()
    if not CAN_RAISE:
        return tries
    # SLF001: the only place where one error can be told.
    judge: Callable[..., Awaitable[ServiceBusError]] = link._handle_exception  # noqa: SLF001

    async def judge_or_raise(exception: BaseException) -> ServiceBusError:
        tries.check(exception)
        error = await judge(exception)
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        return error

    link._handle_exception = judge_or_raise  # type: ignore[method-assign]  # noqa: SLF001
    return tries


CAN_RAISE: Final = has_judge((ServiceBusSender, ServiceBusReceiver), is_async=True)
