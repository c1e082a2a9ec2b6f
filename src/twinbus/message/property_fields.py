"""The places of a message's properties in their list (OASIS AMQP 1.0 part 3.2.4)."""

from typing import Final

MESSAGE_ID: Final = 0
TO: Final = 2
SUBJECT: Final = 3
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
CONTENT_TYPE: Final = 6
ABSOLUTE_EXPIRY_TIME: Final = 8
CREATION_TIME: Final = 9
GROUP_ID: Final = 10  # Service Bus calls it the session id
REPLY_TO_GROUP_ID: Final = 12

# All of them in their order, as the SDK spells them.
NAMES: Final = (
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"),
    *("content_encoding", "absolute_expiry_time", "creation_time", "group_id", "group_sequence"),
    "reply_to_group_id",
)
COUNT: Final = len(NAMES)
