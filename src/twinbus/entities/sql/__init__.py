"""The SQL of filters and actions: text → tokens → nodes, and what nodes say of a message."""

__all__ = ["nodes", "parser", "values"]
