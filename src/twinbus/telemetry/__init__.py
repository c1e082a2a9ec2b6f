"""What a server tells about its work beyond counting it: log lines and traces.

Must never be in the way of a message: what is off costs nothing, what is on never waits.
"""

__all__ = ["logs", "secrets", "telemetry"]
