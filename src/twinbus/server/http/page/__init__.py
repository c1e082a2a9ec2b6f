"""What the web page asks over HTTP."""

__all__ = ["assembly", "cost", "pair_reports", "routes"]
