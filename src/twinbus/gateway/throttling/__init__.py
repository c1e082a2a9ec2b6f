"""Who is told to come back later."""

__all__ = ["link", "throttle"]
