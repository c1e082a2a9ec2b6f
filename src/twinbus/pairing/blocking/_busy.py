"""Server-busy asks for ten seconds of quiet, which the SDK's own retries would break (A-2, P-8).

The SDK tries again after 1.6, 3.2 and 6.4 s whatever the error is, and has no setting for one kind
of error.  But all calls of a link ask one method what to make of an error: it returns the error if
the call is to be tried again, or raises it.  Here server-busy is raised, too: the pair hears of it
at once, and does the waiting.  Everything else the SDK tries again as it was told to.
"""

import inspect
from collections.abc import Sequence
from typing import Final

from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError


def raise_busy(link: ServiceBusSender | ServiceBusReceiver) -> None:
    """Have the link raise server-busy at once, from now on."""
    if not CAN_RAISE:
        return
    judge = link._handle_exception  # noqa: SLF001 - the only place where one error can be told

    def judge_or_raise(exception: BaseException) -> ServiceBusError:
        error = judge(exception)
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        return error

    link._handle_exception = judge_or_raise  # type: ignore[method-assign]  # noqa: SLF001


def has_judge(kinds: Sequence[type], is_async: bool) -> bool:
    """Whether the installed SDK has the method as expected; if not, it is left as it is."""
    for kind in kinds:
        method = getattr(kind, "_handle_exception", None)
        if not inspect.isfunction(method) or inspect.iscoroutinefunction(method) != is_async:
            return False
        if list(inspect.signature(method).parameters) != ["self", "exception"]:
            return False
    return True


CAN_RAISE: Final = has_judge((ServiceBusSender, ServiceBusReceiver), is_async=False)
