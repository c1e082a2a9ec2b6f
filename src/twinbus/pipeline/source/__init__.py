"""Reading: what a query asks for, where it is, and messages as rows."""

__all__ = ["data_source", "offsets", "rows", "runs"]
