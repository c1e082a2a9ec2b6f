"""The port: connections, TLS, and who is on the other end."""

__all__ = ["client_certificates", "connections", "listener", "strangers"]
