"""The names that Service Bus, and twinbus, have for what a message carries.

What a message in a backlog carries on top has its names in `pairing/rules.py`.
"""

from typing import Final

# Message annotations that a sender sets.
PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"

# Message annotations that only a broker sets; a sender's claims are dropped.
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
LOCKED_UNTIL: Final = "x-opt-locked-until"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
MESSAGE_STATE: Final = "x-opt-message-state"
DEADLETTER_SOURCE: Final = "x-opt-deadletter-source"
LOCK_TOKEN: Final = "x-opt-lock-token"
PARTITION_ID: Final = "x-opt-partition-id"
BROKER_ANNOTATIONS: Final = frozenset(
    (
        SEQUENCE_NUMBER,
        ENQUEUED_TIME,
        LOCKED_UNTIL,
        ENQUEUE_SEQUENCE_NUMBER,
        MESSAGE_STATE,
        DEADLETTER_SOURCE,
        LOCK_TOKEN,
        PARTITION_ID,
    )
)

# A delivery annotation of messages that are peeked without their body: how much was left out.
OMITTED_BODY_SIZE: Final = "omitted-message-body-size"

# A delivery annotation: "<producer>/<number>".
PRODUCER_KEY: Final = "x-opt-twinbus-producer-key"

# A property of every link to a sender: which namespace this is, whatever its address.
NAMESPACE_ID: Final = "com.twinbus:namespace-id"

# Application properties of a dead letter.
DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

# The content type of a ping.
PING_TYPE: Final = "application/vnd.ms-servicebus-ping"
