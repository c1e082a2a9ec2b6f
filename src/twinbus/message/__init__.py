"""Messages as bytes: their sections, their stored form, their limits, what names them."""

__all__ = [
    "field_values",
    "filter_fields",
    "incoming",
    "lock_tokens",
    "message_id",
    "outgoing",
    "plain",
    "producer_keys",
    "property_fields",
    "scan",
    "sections",
    "short_scan",
    "stored",
    "wire_names",
]
