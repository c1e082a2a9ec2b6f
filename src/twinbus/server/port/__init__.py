"""The port: connections, TLS, and the clients behind them."""

__all__ = ["client_certificates", "connections", "listener", "strangers"]
