"""What strangers make the server keep: those who have not shown a key, all of them together.

Each has little room by himself; but there may be thousands.  Only what waits counts: a head or a
body that is not all there.  Who comes with a good token at once needs no room here, so strangers
cannot keep the others out.
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
