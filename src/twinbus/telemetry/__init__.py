"""What a server reports about its work besides metrics: log lines and traces.

Must never delay a message: when off it costs nothing, when on it never waits.
"""

__all__ = ["logs", "secrets", "telemetry"]
