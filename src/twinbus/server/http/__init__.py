"""HTTP: connections, access, WebSockets."""

__all__ = ["access", "connection", "exchange", "viewers", "websocket"]
