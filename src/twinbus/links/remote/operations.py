"""The operations on a broker process's socket: tuples, one for each operation.

    (operation, store, ...)     plain builtins only; `store` is ANY where it concerns the process

Commands (codec.py) are operations too, with numbers from 100 on.  The gateway numbers requests, and
the answer repeats the number; none is used twice for a store, so a late answer is ignored.
"""

from typing import Any, Final, Protocol

# The elements differ from operation to operation; each is told below.
Operation = tuple[Any, ...]

ANY: Final = -1
# Bytes that a receiver may be behind before the far end waits for it.
WINDOW_BYTES: Final = 1_048_576
MESSAGE_OVERHEAD_BYTES: Final = 128  # what a message takes in a frame beside its body, about

# --- from the gateway to a broker process -----------------------------------------------------
CONFIGURE: Final = 1  # settings: dict; before anything else
END: Final = 2  # close every store, then end
PING: Final = 3  # number
TELL_LOG: Final = 4  # the newest lines of the log, please
OPEN_STORE: Final = 5  # path
CLOSE_STORE: Final = 6  # make durable what was decided, and give the directory back
FAULT: Final = 7  # the plan of what is to go wrong on the store's disk (storage/faulty.py)
HIDE: Final = 9  # keys that must be in no line of the log
DURABLE: Final = 8  # number; answered with the same when everything before it is durable
OPEN_RECEIVER: Final = 10  # number, entity, subqueue, mode, lock or None, exclusive, relays, limit
#                            and the number of a drain or 0
CREDIT: Final = 11  # number, limit, number of a drain or 0
CONSUMED: Final = 12  # number, bytes
CLOSE_RECEIVER: Final = 13  # number; answered with the same
ACCEPT: Final = 14  # number, entity, session id or None, timeout in ms, grant
CANCEL_ACCEPT: Final = 15  # number
RELEASE_SESSION: Final = 16  # entity, lock
COMMIT: Final = 17  # number, commands: a transaction

# --- from a broker process to the gateway -----------------------------------------------------
OPENED: Final = 50  # entities, first grant of this opening
STORE_FAILED: Final = 51  # text, lines of the log; everything of the store is gone
CLOSED: Final = 52
REPLY: Final = 53  # number, form, value
DELIVERIES: Final = 54  # receiver, locked until (UTC, ms), messages, bytes of the window
DRAINED: Final = 55  # receiver, number of the drain
REMOVED: Final = 56  # receiver: the entity is gone
LOST: Final = 57  # receiver, error
ACCEPTED: Final = 58  # number, entity, lock or None, error or None
COMMITTED: Final = 59  # number, error or None
ENTITY_GONE: Final = 60  # entity: deleted for being idle
BEAT: Final = 61  # (beats.py)
PONG: Final = 62  # number
LOG: Final = 63  # lines
BROKEN: Final = 64  # text, stack: an invariant does not hold

COMMAND_MIN: Final = 100


class Sender(Protocol):
    """One end of a socket, as its users see it."""

    def send(self, operation: Operation) -> None:
        """To go out with everything else of this turn."""

    def flush(self) -> None:
        """Let it go out now."""
