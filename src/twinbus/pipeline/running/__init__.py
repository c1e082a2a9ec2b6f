"""Running Spark: Java, a home that starts quickly, sessions, and queries that are kept going."""

__all__ = ["java", "progress", "session", "supervisor"]
