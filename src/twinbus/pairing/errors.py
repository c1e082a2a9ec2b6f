"""Errors of a pair.  All extend the SDK's `ServiceBusError`: callers need no second `except`."""

from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError


class PairingError(ServiceBusError):
    """The pair could not be set up, or cannot do what was asked; the text says why."""


class BacklogUnavailableError(PairingError):
    """No backlog queue accepts the message.  The caller still has it.

    Some messages of a list or batch may have been accepted: `accepted` of them, from the front.
    """

    def __init__(self, message: str, *, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class PingRefusedError(PairingError):
    """The primary refuses pings, and waiting will not help (policy `legacy` only)."""


class PartitionRefusedError(PairingError):
    """The partition that the pair has chosen for a message does not take it.

    The pair chooses another, unless the time of the call is over.  `is_certain`: no earlier try of
    the call can have arrived either.
    """

    def __init__(self, message: str, *, is_certain: bool) -> None:
        super().__init__(message)
        self.is_certain = is_certain


class OtherNamespaceError(PairingError):
    """Another namespace answers than the one that messages are for; never seen by applications.

    `told` is its id.
    """

    def __init__(self, told: str) -> None:
        super().__init__(f"At this address the namespace {told} answers.")
        self.told = told


class PairFaultedError(PairingError):
    """One of the two clients was closed or has faulted, so the pair has ended."""


class BacklogMessageSizeExceededError(PairingError, MessageSizeExceededError):
    """The message fits the primary, but not the backlog, which adds properties to it.

    `size_bytes` is its own size, `rewritten_bytes` its size in the backlog.
    """

    def __init__(self, size_bytes: int, rewritten_bytes: int, limit_bytes: int) -> None:
        ServiceBusError.__init__(
            self,
            f"The message of {size_bytes} bytes needs {rewritten_bytes} bytes in a backlog queue, "
            f"whose limit is {limit_bytes} bytes.",
        )
        self.size_bytes = size_bytes
        self.rewritten_bytes = rewritten_bytes
        self.limit_bytes = limit_bytes


class UnrestorableMessageError(PairingError):
    """A message of a backlog queue cannot be restored; it is dead-lettered with `reason`.

    `reason` is one word for programs, `description` explains it to people.
    """

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(f"{reason}: {description}")
        self.reason = reason
        self.description = description
