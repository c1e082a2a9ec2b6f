"""AMQP: links, settlements, sessions, tokens and requests of one client."""

__all__ = ["endpoint", "idle"]
