"""A store link over a socket: what is said, how it is encoded, and the gateway's end of it."""

__all__ = ["beats", "channel", "codec", "messages", "operations", "remote_store", "results"]
