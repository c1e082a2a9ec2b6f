"""Throttling: refusing requests under pressure."""

__all__ = ["link", "throttle"]
