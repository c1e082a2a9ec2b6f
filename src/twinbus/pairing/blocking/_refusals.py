"""Two answers of the server that are for the pair, before the SDK tries again by itself.

- Server-busy asks for ten seconds of quiet, which the SDK's retries would break (A-2, P-8).
- A partition that refuses a message lets the pair choose another (P-20), if it is certain that no
  earlier try has arrived.  Nobody else knows about earlier tries: they end here, too.

The SDK tries again after 1.6, 3.2 and 6.4 s whatever the error is, and has no setting for one kind
of error.  But all calls of a link ask one method what to make of an error: it returns the error if
the call is to be tried again, or raises it.  Here these two are raised at once.  Everything else
the SDK tries again as it was told to.
"""

import inspect
from collections.abc import Sequence
from typing import Final

from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from twinbus.errors import PartitionRefused
from twinbus.pairing.classification import condition_of
from twinbus.pairing.errors import PartitionRefusedError


class Tries:
    """Of one call: has any failed whose message may have arrived?"""

    __slots__ = ("are_certain",)

    def __init__(self) -> None:
        self.are_certain = True

    def begin(self) -> None:
        """A call begins."""
        self.are_certain = True

    def check(self, exception: BaseException) -> None:
        """Raise what a partition has answered; note what else came."""
        if condition_of(exception) == PartitionRefused.amqp_condition:
            raise PartitionRefusedError(str(exception), is_certain=self.are_certain)
        self.are_certain = False


def raise_refusals(link: ServiceBusSender | ServiceBusReceiver) -> Tries:
    """Have the link raise these at once, from now on."""
    tries = Tries()
    if not CAN_RAISE:
        return tries
    judge = link._handle_exception  # noqa: SLF001 - the only place where one error can be told

    def judge_or_raise(exception: BaseException) -> ServiceBusError:
        tries.check(exception)
        error = judge(exception)
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        return error

    link._handle_exception = judge_or_raise  # type: ignore[method-assign]  # noqa: SLF001
    return tries


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
