"""Shared access signatures, made as the official SDKs make them."""

import base64
import hmac
from urllib.parse import quote_plus


def make_sas_token(uri: str, rule_name: str, key: str, expires_s: int) -> str:
    """A token for `uri` and everything below it, good until `expires_s` (UTC seconds)."""
    resource = quote_plus(uri)
    digest = hmac.digest(key.encode(), f"{resource}\n{expires_s}".encode(), "sha256")
    signature = quote_plus(base64.b64encode(digest))
    rule = quote_plus(rule_name)
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={rule}"
