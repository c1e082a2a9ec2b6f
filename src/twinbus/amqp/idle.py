"""Idle time-outs of a connection (OASIS AMQP 1.0 part 2.4.5), without a clock.

Activity is only noted, and dated at the next tick: input as late as possible (now), output as early
as possible (the last tick).  So we never hang up on a peer too soon and never send a heartbeat too
late.
"""


class IdleTime:
    """How long either side has been silent; a time-out of 0 is none."""

    __slots__ = ("_heard_ms", "_spoke_ms", "_ticked_ms", "received", "sent")

    def __init__(self) -> None:
        self.received = False  # since the last tick
        self.sent = False
        self._heard_ms = -1
        self._spoke_ms = -1
        self._ticked_ms = -1

    def tick(self, mono_ms: int) -> None:
        """Give what has happened its date."""
        if self.received or self._heard_ms < 0:
            self._heard_ms = mono_ms
            self.received = False
        if self.sent or self._spoke_ms < 0:
            self._spoke_ms = self._ticked_ms if self._ticked_ms >= 0 else mono_ms
            self.sent = False
        self._ticked_ms = mono_ms

    def is_over(self, mono_ms: int, idle_ms: int) -> bool:
        """Has the peer been silent for longer than we let it?"""
        return idle_ms > 0 and mono_ms - self._heard_ms >= idle_ms

    def must_speak(self, mono_ms: int, peer_ms: int) -> bool:
        """Is it time for a sign of life?  True counts as one."""
        if not peer_ms or mono_ms - self._spoke_ms < peer_ms // 2:
            return False
        self._spoke_ms = mono_ms
        return True
