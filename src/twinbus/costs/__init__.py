"""What the metered operations come to, and what pairing will: arithmetic, without any I/O."""

__all__ = ["plan", "prices", "rollup"]
