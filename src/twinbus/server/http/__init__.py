"""HTTP: connections, who may ask, WebSockets."""

__all__ = ["access", "connection", "exchange", "viewers", "websocket"]
