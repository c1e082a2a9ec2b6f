"""The memory that all strangers share: clients that have not shown a key.

Each one has little room, but there may be thousands.  Only incomplete heads and bodies count.  A
client that shows a valid token at once needs no room here, so strangers cannot keep the others
out.
"""

from twinbus.limits import STRANGERS_BYTES_MAX


class Strangers:
    """The room that all strangers of one server share."""

    __slots__ = ("kept_bytes",)

    def __init__(self) -> None:
        self.kept_bytes = 0


class StrangerShare:
    """What one of them has of it."""

    __slots__ = ("_bytes", "_strangers")

    def __init__(self, strangers: Strangers) -> None:
        self._strangers = strangers
        self._bytes = 0

    def hold(self, size_bytes: int) -> bool:
        """So much is kept from now on; False: there is no room for more, and nothing changes."""
        strangers = self._strangers
        after = strangers.kept_bytes - self._bytes + size_bytes
        if size_bytes > self._bytes and after > STRANGERS_BYTES_MAX:
            return False
        strangers.kept_bytes = after
        self._bytes = size_bytes
        return True

    def release(self) -> None:
        self.hold(0)
