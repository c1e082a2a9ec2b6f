"""What is done with messages on Spark: one file a job, its logic as DataFrame → DataFrame."""

__all__ = ["capture", "compact", "cost", "dead_letters", "ledgers", "reconcile", "replay", "syphon"]
