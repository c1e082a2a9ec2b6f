"""What a failed send means: every error that the SDK raises, under both policies (P-7, P-8).

By the time an error arrives here the SDK has used up its own retries, but for server-busy, which
comes at once (blocking/_refusals.py): the quiet that it asks for is the pair's to keep.  The table
is complete: a test fails when the SDK gets an exception that is not in it.  Nothing here has a
state; what a verdict does to an entity is failover.py.
"""

from enum import Enum
from typing import Final, Literal, TypeAlias

from azure.core import exceptions as core
from azure.servicebus import exceptions as sdk
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.pairing.errors import PairingError, PartitionRefusedError
from twinbus.pairing.rewriting import encoded_size

Policy: TypeAlias = Literal["documented", "legacy"]


class Verdict(Enum):
    """Of a failed send."""

    RAISE = "raise"  # the caller's to mend: no timer starts or stops
    COUNT = "count"  # starts the failover interval; goes on to the backlog where it has passed
    BUSY = "busy"  # pause and send again, never a reason to fail over


_RAISE: Final = Verdict.RAISE
_COUNT: Final = Verdict.COUNT
_BUSY: Final = Verdict.BUSY

# Class → its verdict by policy `documented` and by policy `legacy`.  An error is looked up by its
# class, then by the bases of its class in Python's order: MessageSizeExceededError stands here
# itself, so that it is neither taken for a ServiceBusError nor for a ValueError.
_TABLE: Final[dict[type[BaseException], tuple[Verdict, Verdict]]] = {
    # The namespace or the entity does not take messages now.
    sdk.OperationTimeoutError: (_COUNT, _COUNT),
    sdk.ServiceBusConnectionError: (_COUNT, _COUNT),
    sdk.ServiceBusCommunicationError: (_COUNT, _COUNT),
    sdk.ServiceBusQuotaExceededError: (_COUNT, _RAISE),
    sdk.MessagingEntityDisabledError: (_COUNT, _RAISE),
    sdk.ServiceBusError: (_COUNT, _COUNT),
    sdk.ServiceBusServerBusyError: (_BUSY, _COUNT),
    # The client is misconfigured.
    sdk.ServiceBusAuthenticationError: (_RAISE, _RAISE),
    sdk.ServiceBusAuthorizationError: (_RAISE, _RAISE),
    sdk.MessagingEntityNotFoundError: (_RAISE, _RAISE),
    sdk.MessagingEntityAlreadyExistsError: (_RAISE, _RAISE),
    # The message, or what is done with it, is wrong.
    sdk.MessageSizeExceededError: (_RAISE, _RAISE),
    sdk.MessageAlreadySettled: (_RAISE, _RAISE),
    sdk.MessageLockLostError: (_RAISE, _RAISE),
    sdk.MessageNotFoundError: (_RAISE, _RAISE),
    sdk.SessionLockLostError: (_RAISE, _RAISE),
    sdk.SessionCannotBeLockedError: (_RAISE, _RAISE),
    sdk.AutoLockRenewFailed: (_RAISE, _RAISE),
    sdk.AutoLockRenewTimeout: (_RAISE, _RAISE),
    PairingError: (_RAISE, _RAISE),
    PartitionRefusedError: (_COUNT, _COUNT),  # where none can be chosen
    # What the SDK may let through.  A credential asks its own service for tokens, over the network.
    core.ServiceRequestError: (_COUNT, _RAISE),
    core.ServiceResponseError: (_COUNT, _RAISE),
    core.AzureError: (_RAISE, _RAISE),
    OSError: (_COUNT, _COUNT),  # TimeoutError and ssl.SSLError among them
    ValueError: (_RAISE, _RAISE),
    TypeError: (_RAISE, _RAISE),
    BaseException: (_RAISE, _RAISE),
}
_COLUMN: Final[dict[Policy, int]] = {"documented": 0, "legacy": 1}

# The SDK has one class, ServiceBusError itself, for every condition it has no class for.  These
# say that the request was wrong, whenever it is made (P-8: "invalid operation").
_WRONG_REQUESTS: Final = frozenset(
    {
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:precondition-failed",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
    }
)

# Answers of a server that is there: the connection that brought one is as good as before.
_ANSWERS: Final = (
    sdk.ServiceBusQuotaExceededError,
    sdk.MessagingEntityDisabledError,
    sdk.ServiceBusServerBusyError,
    sdk.MessageSizeExceededError,
    sdk.MessagingEntityAlreadyExistsError,
    PairingError,
    TypeError,
)


def verdict_of(error: BaseException, policy: Policy) -> Verdict:
    """What a failed send means for its entity."""
    if type(error) is sdk.ServiceBusError:
        if condition_of(error) in _WRONG_REQUESTS:
            return Verdict.RAISE
        cause = error.inner_exception
        # "Handler failed": the SDK wraps what it did not expect.  A credential that refuses is
        # still one; anything else may be how a broken connection shows.
        if isinstance(cause, core.AzureError):
            return verdict_of(cause, policy)
    if isinstance(error, sdk.ServiceBusAuthenticationError) and not _is_refused(error):
        return Verdict.COUNT
    for each in type(error).__mro__:
        found = _TABLE.get(each)
        if found is not None:
            return found[_COLUMN[policy]]
    return Verdict.RAISE


def is_wrapped_fault(error: BaseException) -> bool:
    """Whether the SDK met something that may be the message's own fault: it only shows when the
    message is encoded, and the SDK does that in the middle of sending."""
    if type(error) is not sdk.ServiceBusError or condition_of(error):
        return False  # a condition is what a server has answered
    cause = error.inner_exception
    return isinstance(cause, Exception) and not isinstance(cause, OSError)


def is_broken_by(error: BaseException) -> bool:
    """Whether the SDK's sender is of no further use after this error, so that a new one is needed.

    A time-out, a lost connection and a cancelled call leave it in the middle of something.
    """
    return not isinstance(error, _ANSWERS)


def table() -> list[tuple[str, str, str]]:
    """Name of each class, its verdict by `documented` and by `legacy`, for the docs."""
    return [
        (each.__name__, documented.value, legacy.value)
        for each, (documented, legacy) in _TABLE.items()
    ]


def _is_refused(error: sdk.ServiceBusAuthenticationError) -> bool:
    """Whether somebody has looked at the credential and does not want it.

    The SDK uses the same class when it got no answer: a host name that does not resolve, a token
    that ran out unrenewed, an authentication link that broke, a server that failed (500).  A status
    of None is an answer: the SDK drops the number when the server names a condition as well.
    """
    cause = error.inner_exception
    status = getattr(cause, "status_code", 0)
    return cause is None or status is None or (isinstance(status, int) and 400 <= status < 500)


def condition_of(error: BaseException) -> str:
    """The condition that the server has named; empty if there is none."""
    # The SDK shows the condition in its text only; a failed schedule has no inner exception.
    found = getattr(error, "_condition", None) or getattr(error, "condition", None) or ""
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


# --- of a syphon ----------------------------------------------------------------------------------


class Fate(Enum):
    """Of messages of the backlog whose send has failed."""

    REST = "rest"  # the destination's fault, or nobody's
    GONE = "gone"  # there is no destination
    PERMANENT = "permanent"  # one of the messages is at fault, or how they were put together


def fate_of(error: Exception, messages: list[AmqpAnnotatedMessage]) -> Fate:
    """By the default policy whatever the pair's is: it knows what mends itself."""
    if isinstance(error, sdk.MessagingEntityNotFoundError):
        return Fate.GONE
    is_plain = isinstance(error, ValueError | TypeError) and not isinstance(
        error, sdk.ServiceBusError
    )
    if is_plain or is_wrapped_fault(error):
        # The SDK also raises a ValueError when its sender has been closed: no message's fault.
        return Fate.REST if all(map(can_be_sent, messages)) else Fate.PERMANENT
    if verdict_of(error, "documented") is not Verdict.RAISE:
        return Fate.REST
    # Nothing is dead-lettered for a wrong key, nor for what is no answer to a send at all.
    if isinstance(error, sdk.ServiceBusError):
        access = (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError, PairingError)
        cause = error.inner_exception
        is_access = isinstance(error, access) or isinstance(cause, core.AzureError)
        return Fate.REST if is_access else Fate.PERMANENT
    return Fate.REST


def can_be_sent(message: AmqpAnnotatedMessage) -> bool:
    try:
        encoded_size(message)
    except Exception:  # noqa: BLE001 - the SDK's encoder raises whatever comes
        return False
    return True
