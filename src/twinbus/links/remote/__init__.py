"""A store link over a socket: its operations, their encoding, and the gateway's end."""

__all__ = ["beats", "channel", "codec", "messages", "operations", "remote_store", "results"]
