"""Every error that crosses a boundary, in one tree.

Each class carries how it is spoken on the wire: the AMQP condition, the HTTP status, and whether a
client should try again.  Names follow the official SDK's exceptions, so that a reader can map both
ways.  Text never contains keys, tokens or more than 64 bytes of what a peer sent.

    TwinbusError
    ├── ServiceError                 an answer to a client's request
    │   ├── EntityNotFound           amqp:not-found
    │   ├── EntityAlreadyExists      com.microsoft:entity-already-exists
    │   ├── EntityDisabled           com.microsoft:entity-disabled
    │   ├── Unauthorized             amqp:unauthorized-access
    │   ├── MessageLockLost          com.microsoft:message-lock-lost
    │   ├── MessageNotFound          com.microsoft:message-not-found
    │   ├── MessageSizeExceeded      amqp:link:message-size-exceeded
    │   ├── SessionCannotBeLocked    com.microsoft:session-cannot-be-locked
    │   ├── SessionLockLost          com.microsoft:session-lock-lost
    │   ├── LinkStolen               amqp:link:stolen
    │   ├── QuotaExceeded            amqp:resource-limit-exceeded
    │   │   └── DiskFull
    │   ├── ServerBusy               com.microsoft:server-busy
    │   ├── OperationTimeout         com.microsoft:timeout
    │   ├── Unavailable              amqp:internal-error
    │   ├── PartitionRefused         twinbus:partition-refused
    │   ├── ArgumentInvalid          com.microsoft:argument-error
    │   ├── ArgumentOutOfRange       com.microsoft:argument-out-of-range
    │   ├── TransactionNotFound      amqp:transaction:unknown-id
    │   ├── TransactionRolledBack    amqp:transaction:rollback
    │   ├── TransactionTimedOut      amqp:transaction:timeout
    │   ├── InvalidOperation         amqp:not-allowed
    │   └── NotSupported             amqp:not-implemented
    ├── ProtocolError                somebody broke AMQP
    │   ├── LocalProtocolError       we did: a bug on this side
    │   └── RemoteProtocolError      the peer did; carries the condition to close with
    ├── StorageError
    │   ├── LogDamaged               bytes at rest are not what was written; file and offset
    │   ├── LogPoisoned              a write or sync failed: nothing more is acknowledged
    │   └── DirectoryInUse           another server holds the data directory
    └── ConfigError                  file, line and the fix
"""

from typing import ClassVar


class TwinbusError(Exception):
    """Root of the tree."""


class ServiceError(TwinbusError):
    """A request was refused; nothing has changed because of it."""

    amqp_condition: ClassVar[str] = "amqp:internal-error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class EntityNotFound(ServiceError):
    amqp_condition = "amqp:not-found"
    http_status = 404


class EntityAlreadyExists(ServiceError):
    amqp_condition = "com.microsoft:entity-already-exists"
    http_status = 409


class EntityDisabled(ServiceError):
    amqp_condition = "com.microsoft:entity-disabled"
    http_status = 400


class Unauthorized(ServiceError):
    amqp_condition = "amqp:unauthorized-access"
    http_status = 401


class MessageLockLost(ServiceError):
    amqp_condition = "com.microsoft:message-lock-lost"
    http_status = 410


class MessageNotFound(ServiceError):
    amqp_condition = "com.microsoft:message-not-found"
    http_status = 404


class MessageSizeExceeded(ServiceError):
    amqp_condition = "amqp:link:message-size-exceeded"
    http_status = 403


class SessionCannotBeLocked(ServiceError):
    amqp_condition = "com.microsoft:session-cannot-be-locked"
    http_status = 410
    retryable = True


class SessionLockLost(ServiceError):
    amqp_condition = "com.microsoft:session-lock-lost"
    http_status = 410


class LinkStolen(ServiceError):
    """Another link goes on with what this one had."""

    amqp_condition = "amqp:link:stolen"
    http_status = 409


class QuotaExceeded(ServiceError):
    amqp_condition = "amqp:resource-limit-exceeded"
    http_status = 403


class DiskFull(QuotaExceeded):
    """No room for new messages; receiving and settling go on from the reserve."""


class ServerBusy(ServiceError):
    amqp_condition = "com.microsoft:server-busy"
    http_status = 503
    retryable = True


class OperationTimeout(ServiceError):
    amqp_condition = "com.microsoft:timeout"
    http_status = 408
    retryable = True


class Unavailable(ServiceError):
    """The part of the bus that would have to do it is down.

    Whether it has been done is not known if it was on its way already; the text says so.
    """

    amqp_condition = "amqp:internal-error"
    http_status = 503
    retryable = True


class PartitionRefused(ServiceError):
    """The partition that a producer has chosen does not take the message; another may.

    Ours, and only for producers that ask (`ProducerKey.is_asking`).  Nothing was stored.
    """

    amqp_condition = "twinbus:partition-refused"
    http_status = 503
    retryable = True


class ArgumentInvalid(ServiceError):
    amqp_condition = "com.microsoft:argument-error"
    http_status = 400


class ArgumentOutOfRange(ServiceError):
    amqp_condition = "com.microsoft:argument-out-of-range"
    http_status = 400


class TransactionNotFound(ServiceError):
    amqp_condition = "amqp:transaction:unknown-id"
    http_status = 404


class TransactionRolledBack(ServiceError):
    """Nothing of the transaction has happened; the text says why."""

    amqp_condition = "amqp:transaction:rollback"
    http_status = 409


class TransactionTimedOut(ServiceError):
    amqp_condition = "amqp:transaction:timeout"
    http_status = 408


class InvalidOperation(ServiceError):
    amqp_condition = "amqp:not-allowed"
    http_status = 400


class NotSupported(ServiceError):
    amqp_condition = "amqp:not-implemented"
    http_status = 501


class ProtocolError(TwinbusError):
    """AMQP was not followed; `condition` is what the connection is closed with."""

    def __init__(self, message: str, condition: str = "amqp:connection:framing-error") -> None:
        super().__init__(message)
        self.condition = condition


class LocalProtocolError(ProtocolError):
    """We asked for something that AMQP forbids in this state: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that AMQP forbids."""


class StorageError(TwinbusError):
    """The store cannot do its work."""


class LogDamaged(StorageError):
    """What is on disk is not what was written.  Nothing is deleted; a person has to decide."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class LogPoisoned(StorageError):
    """A write or sync failed.  After that nobody knows what is on disk, so we stop and replay."""


class DirectoryInUse(StorageError):
    """Another process has the data directory open."""


class ConfigError(TwinbusError):
    """The configuration cannot be used; says where and what to do."""
