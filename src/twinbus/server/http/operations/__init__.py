"""What operators ask over HTTP: health, metrics, meter, faults, namespaces."""

__all__ = ["faults", "front", "health", "meter", "metrics", "namespaces", "running_server"]
