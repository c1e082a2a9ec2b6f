"""Access control: shared access signatures, web tokens, and the claims of a connection."""

__all__ = ["claims", "shared_access", "web_tokens"]
