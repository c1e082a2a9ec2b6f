"""Errors of a pair.  All are the SDK's `ServiceBusError`, so callers need no second `except`."""

from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError


class PairingError(ServiceBusError):
    """The pair could not be set up as asked, or cannot do what is asked; the text says why."""


class BacklogUnavailableError(PairingError):
    """No backlog queue takes the message.  The caller still has it.

    Of a list or batch some may have been taken before: `accepted` says how many, from the front.
    """

    def __init__(self, message: str, *, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class PingRefusedError(PairingError):
    """The primary refuses pings for a reason that waiting does not mend (policy `legacy` only)."""


class PairFaultedError(PairingError):
    """One of the two clients has been closed or has faulted, so the pair is over."""


class BacklogMessageSizeExceededError(PairingError, MessageSizeExceededError):
    """The message fits the primary, but not with the properties that the backlog needs.

    `size_bytes` is its own size, `rewritten_bytes` the one in the backlog.
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
    """A message of a backlog queue cannot be given back its form; `reason` goes on its dead letter.

    `reason` is one word for programs, `description` says to a person what is wrong.
    """

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(f"{reason}: {description}")
        self.reason = reason
        self.description = description
