"""Every ceiling in one place: value, unit, why, and what happens beyond it.

Where a number follows Azure Service Bus (facts of its documentation) or another broker, it says so.
"""

from typing import Final

# --- AMQP, before anybody is known ------------------------------------------------------------
# Until `open` a peer may hold only this much of us: RabbitMQ and the CBS draft use 8,192 too.
PRE_OPEN_FRAME_SIZE_BYTES_MAX: Final = 8_192
HANDSHAKE_DURATION_S_MAX: Final = 10.0  # header, SASL, open; RabbitMQ's figure.  Then we hang up.
TLS_HANDSHAKE_DURATION_S_MAX: Final = 5.0
CBS_DURATION_S_MAX: Final = 20.0  # Service Bus: a token within 20 s of connecting

# --- AMQP -------------------------------------------------------------------------------------
# Service Bus offers 64 KiB (standard) to 1 MiB; larger frames mean fewer Python calls a message.
FRAME_SIZE_BYTES_MAX: Final = 262_144
FRAME_SIZE_BYTES_MIN: Final = 512  # AMQP 1.0 §2.4.1
CHANNELS_MAX: Final = 64  # AMQP sessions a connection; RabbitMQ's default
HANDLES_MAX: Final = 256  # links a session; RabbitMQ's default
# pyamqp never reuses a handle, so the numbers may grow far beyond the links open at a time.
HANDLE_NUMBER_MAX: Final = 65_535
IDLE_TIMEOUT_MS: Final = 240_000  # ours; the SDK beats at most every 30 s
IDLE_TIMEOUT_MS_MIN: Final = 1_000  # a peer that asks for less would only make us beat
SESSION_WINDOW: Final = 65_536  # frames; topped up when half is used
INGRESS_CREDIT: Final = 2_000  # per sender link; topped up when half is used
EGRESS_CREDIT_MAX: Final = 50_000  # what a receiver may ask for at once; more is cut to this
UNSETTLED_COUNT_MAX: Final = 50_000  # deliveries of one link waiting for settlement
# Ids in dispositions that name nothing we wait for, net of those that do: a range costs 30 bytes to
# send and may take 50,000 steps to look through.  Beyond this the connection is closed.
DISPOSITION_MISSES_MAX: Final = 1_000_000
PARTIAL_DELIVERY_BYTES_MAX: Final = 104_857_600  # all half-received deliveries of a connection
OUTPUT_BUFFER_BYTES_MAX: Final = 8_388_608  # unsent bytes at which a receiver gets no more

# Sent and not yet on disk, over all clients; beyond it we stop reading until it is.
PENDING_BYTES_MAX: Final = 33_554_432

# --- values -----------------------------------------------------------------------------------
NESTING_MAX: Final = 32
ELEMENTS_MAX: Final = 65_536  # of a list, map or array; pyamqp's own ceiling
ZERO_WIDTH_ELEMENTS_MAX: Final = 1_024  # arrays whose elements take no bytes (RabbitMQ 3f0f67dfb7)
SECTIONS_MAX: Final = 4_500  # body sections of one message; a batch may carry 4,500 messages

# --- messages (Service Bus standard / premium) ------------------------------------------------
MESSAGE_SIZE_BYTES_MAX: Final = 1_048_576
BATCH_SIZE_BYTES_MAX: Final = 1_048_576
PROPERTIES_SIZE_BYTES_MAX: Final = 65_536
MESSAGE_ID_CHARS_MAX: Final = 128
SESSION_ID_CHARS_MAX: Final = 128
PARTITION_KEY_CHARS_MAX: Final = 128
DEAD_LETTER_TEXT_CHARS_MAX: Final = 4_096

# --- entities (Service Bus) -------------------------------------------------------------------
LOCK_DURATION_MS_DEFAULT: Final = 60_000
LOCK_DURATION_MS_MIN: Final = 5_000
LOCK_DURATION_MS_MAX: Final = 300_000
DELIVERY_COUNT_MAX_DEFAULT: Final = 10
DELIVERY_COUNT_MAX_MAX: Final = 2_147_483_647
TIME_TO_LIVE_MS_MIN: Final = 1_000
DUPLICATE_WINDOW_MS_DEFAULT: Final = 600_000
DUPLICATE_WINDOW_MS_MIN: Final = 20_000
DUPLICATE_WINDOW_MS_MAX: Final = 604_800_000
AUTO_DELETE_MS_MIN: Final = 300_000
ENTITY_NAME_CHARS_MAX: Final = 260
USER_METADATA_CHARS_MAX: Final = 1_024
ENTITIES_MAX: Final = 10_000
QUEUE_SIZE_MEGABYTES_DEFAULT: Final = 1_024
QUEUE_SIZE_MEGABYTES_MAX: Final = 81_920

# --- requests ---------------------------------------------------------------------------------
PEEK_COUNT_MAX: Final = 1_000
PEEK_RESPONSE_BYTES_MAX: Final = 262_144  # Service Bus: a peek batch stops at 256 KB
SEQUENCE_NUMBERS_MAX: Final = 1_000  # in one request
SAS_TOKEN_CHARS_MAX: Final = 8_192
HTTP_BODY_BYTES_MAX: Final = 1_048_576
HTTP_HEAD_BYTES_MAX: Final = 32_768  # three SAS tokens fit (own and two forward targets)
HTTP_REQUEST_DURATION_S_MAX: Final = 10.0  # first byte to last; then 408 and we hang up
HTTP_IDLE_DURATION_S_MAX: Final = 120.0  # between requests, and for a peer that does not read
XML_DEPTH_MAX: Final = 32
XML_ELEMENTS_MAX: Final = 1_024  # a description has about 30
PAGE_COUNT_MAX: Final = 1_000  # entities in one feed; the SDKs ask for 100

# --- storage ----------------------------------------------------------------------------------
SEGMENT_SIZE_BYTES: Final = 67_108_864
SEGMENT_HEADER_BYTES: Final = 4_096
# One commit never outgrows what a segment can hold, and keeps a reader's memory bounded.
COMMIT_SIZE_BYTES_MAX: Final = 16_777_216
BODY_CACHE_BYTES: Final = 67_108_864  # bodies kept after sending, to spare a read
CONNECTIONS_MAX: Final = 5_000  # Service Bus: AMQP connections a namespace
