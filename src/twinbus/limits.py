"""Every ceiling in one place: value, unit, why, and what happens beyond it.

Where a number follows Azure Service Bus (facts of its documentation) or another broker, it says so.
"""

from dataclasses import dataclass
from typing import Final

# --- before anybody is known ------------------------------------------------------------------
# What whoever has shown no key may make us keep: beyond it an HTTP request is answered 401 without
# its body, and AMQP ends with resource-limit-exceeded.  Then of all of them: 503, and the same.
STRANGER_BYTES_MAX: Final = 65_536
STRANGERS_BYTES_MAX: Final = 67_108_864
# Every TLS connection has a buffer of this size from its first byte on; asyncio's own 256 KiB would
# be more than a gigabyte for CONNECTIONS_MAX.  Two records fit, and it is not slower.
TLS_BUFFER_BYTES: Final = 32_768
# Until `open` a peer may hold only this much of us: RabbitMQ and the CBS draft use 8,192 too.
PRE_OPEN_FRAME_SIZE_BYTES_MAX: Final = 8_192
HANDSHAKE_DURATION_S_MAX: Final = 10.0  # header, SASL, open; RabbitMQ's figure.  Then we hang up.
TLS_HANDSHAKE_DURATION_S_MAX: Final = 5.0
CBS_DURATION_S_MAX: Final = 20.0  # Service Bus: a token within 20 s of connecting
FIRST_LINK_S_MAX: Final = 60.0  # Service Bus: a connection without a link is closed, at first
LAST_LINK_S_MAX: Final = 300.0  # after this, and after its last link went after that
LINK_IDLE_S_MAX: Final = 600.0  # Service Bus: a link on which nothing moves is detached

# --- AMQP -------------------------------------------------------------------------------------
# Service Bus offers 64 KiB (standard) to 1 MiB; larger frames mean fewer Python calls a message.
FRAME_SIZE_BYTES_MAX: Final = 262_144
FRAME_SIZE_BYTES_MIN: Final = 512  # AMQP 1.0 §2.4.1
# AMQP sessions a connection: Service Bus announces channel-max 4,999, and .NET begins a session for
# each link.  Above it a begin is a framing error.  What bounds memory are the places below.
CHANNELS_MAX: Final = 5_000
HANDLES_MAX: Final = 256  # links a session; RabbitMQ's default.  One more is detached.
# Links a connection: .NET has one in a session, or the two of a $management or $cbs node, so its
# channels are never more than this.  One more is detached.
CONNECTION_LINKS_MAX: Final = 10_000
# Sessions, links and tokens of all connections together, at 1.6 to 2.2 KB each: 400 MB.  Beyond it
# a session is ended, a link detached and a token refused, all with amqp:resource-limit-exceeded.
PLACES_MAX: Final = 200_000
TOKENS_MAX: Final = CONNECTION_LINKS_MAX  # of one connection, one for each address
STRANGER_PLACES_MAX: Final = 10_000  # besides, of all connections without a valid token yet
PLACES_FREE: Final = 16  # that every connection may have, however many the others have
ATTACH_SIZE_BYTES_MAX: Final = 8_192  # real ones have some hundred; parts are kept with the link
# pyamqp never reuses a handle, so the numbers may grow far beyond the links open at a time.
HANDLE_NUMBER_MAX: Final = 65_535
IDLE_TIMEOUT_MS: Final = 240_000  # ours; the SDK beats at most every 30 s
IDLE_TIMEOUT_MS_MIN: Final = 1_000  # a peer that asks for less would only make us beat
SESSION_WINDOW: Final = 65_536  # frames; topped up when half is used
INGRESS_CREDIT: Final = 2_000  # per sender link; topped up when half is used
EGRESS_CREDIT_MAX: Final = 50_000  # what a receiver may ask for at once; more is cut to this
UNSETTLED_COUNT_MAX: Final = 50_000  # deliveries of one link waiting for settlement
# Of all links of a connection, at some 300 bytes each; its receivers get no more until some are.
CONNECTION_UNSETTLED_MAX: Final = 500_000
# Ids in dispositions that name nothing we wait for, net of those that do: a range costs 30 bytes to
# send and may take 50,000 steps to look through.  Beyond this the connection is closed.
DISPOSITION_MISSES_MAX: Final = 1_000_000
PARTIAL_DELIVERY_BYTES_MAX: Final = 104_857_600  # all half-received deliveries of a connection
OUTPUT_BUFFER_BYTES_MAX: Final = 8_388_608  # unsent bytes at which a receiver gets no more

# Sent and not yet on disk, over all clients; beyond it we stop reading until it is.
PENDING_BYTES_MAX: Final = 33_554_432

# --- sockets ----------------------------------------------------------------------------------
# The largest TCP segment.  .NET's SDK makes its socket's buffers 8 KiB after connecting.  Linux
# holds a segment back that is larger than the room its peer has left, and sends what fits only
# after 200 ms: on loopback, where segments have 32 KiB, every time.  1,460 is what Ethernet
# carries, so it changes nothing there.  docs/designs/2026-11-performance-log.md has the figures.
TCP_SEGMENT_BYTES_MAX: Final = 1_460

# --- values -----------------------------------------------------------------------------------
NESTING_MAX: Final = 32
ELEMENTS_MAX: Final = 65_536  # of a list, map or array; pyamqp's own ceiling
ZERO_WIDTH_ELEMENTS_MAX: Final = 1_024  # arrays whose elements take no bytes (RabbitMQ 3f0f67dfb7)
SECTIONS_MAX: Final = 4_500  # body sections of one message; a batch may carry 4,500 messages

# --- messages (Service Bus standard / premium) ------------------------------------------------
MESSAGE_SIZE_BYTES_MAX: Final = 1_048_576
BATCH_SIZE_BYTES_MAX: Final = 1_048_576
PROPERTIES_SIZE_BYTES_MAX: Final = 65_536
PROPERTY_SIZE_BYTES_MAX: Final = 32_768  # one of them
MESSAGE_ID_CHARS_MAX: Final = 128
SESSION_ID_CHARS_MAX: Final = 128
PARTITION_KEY_CHARS_MAX: Final = 128
SCHEDULED_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of the year 9999, as in .NET
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
SUBSCRIPTION_NAME_CHARS_MAX: Final = 50
RULE_NAME_CHARS_MAX: Final = 50
USER_METADATA_CHARS_MAX: Final = 1_024
ENTITIES_MAX: Final = 10_000  # of a namespace in the tiers Basic and Standard
ENTITIES_BEARABLE_MAX: Final = 1_000_000  # where the tier sets no limit
PARTITIONED_ENTITIES_MAX: Final = 100  # they count among the others, too
SUBSCRIPTIONS_MAX: Final = 2_000  # of one topic
SQL_FILTERS_MAX: Final = 2_000  # of one topic
CORRELATION_FILTERS_MAX: Final = 100_000  # of one topic
FILTER_CHARS_MAX: Final = 1_024  # of a filter's or an action's text
ACTION_STATEMENTS_MAX: Final = 32
FILTER_NESTING_MAX: Final = 32  # brackets in brackets; what follows them is recursion
FILTER_TEXT_CHARS_MAX: Final = 32_768  # of a text that a filter or action makes; a property's size
FILTER_PARAMETERS_MAX: Final = 128  # of a rule: parameters, or properties of a correlation filter
# How long a request waits for others about the same entity; the SDKs wait longer, and try again.
ENTITY_WAIT_S_MAX: Final = 20.0
FORWARD_HOPS_MAX: Final = 4  # documentation and other brokers differ (3 or 4); M-8 says 4
SESSION_STATE_BYTES_MAX: Final = 1_048_576  # as large as a message
SHARED_ACCESS_RULES_MAX: Final = 12  # of one entity, and of one namespace
SHARED_ACCESS_CHARS_MAX: Final = 256  # of a rule's name and of a key
# Ids that duplicate detection remembers for one entity, 16 bytes each; beyond it sends are refused.
DUPLICATE_IDS_MAX: Final = 20_000_000
# Carriers of other stores whose numbers one entity remembers; beyond it the one that has not sent
# for longest is forgotten.  Only a carrier that waits for an answer needs it, and repeats soon.
CARRIERS_MAX: Final = 1_024
# Numbers of one carrier; the oldest go.  A relay has at most 256 that it has not completed, and
# each crash of it leaves as many that nobody will ask for again.
CARRIED_NUMBERS_MAX: Final = 1_024
# Producers that number their messages (entities/arrivals.py): a pairing has up to 32 of them for an
# entity, so this is some hundred clients.  The one that has not sent for longest is forgotten.
ARRIVAL_PRODUCERS_MAX: Final = 4_096
# Those that number one piece of work only, apart.  A chunk of a Spark task is one in each partition
# of an entity, and 16 in an entity without partitions, so that is to remember as many of them as
# all the partitions of another: 4,096 chunks, up to 16 million messages.  A producer takes 320
# bytes, so all of them take 21 MB, and in a partition a sixteenth of it.
ARRIVAL_PASSING_MAX: Final = 65_536
# Runs of numbers of one producer.  Gaps come from messages that wait in a backlog, and close when
# it is emptied; the lowest numbers, whose copies are the least likely, are forgotten first.
ARRIVAL_RANGES_MAX: Final = 1_024
PRODUCER_KEY_CHARS_MAX: Final = 128  # as long as a message id; ours have less than 100
PING_SIZE_BYTES_MAX: Final = 512  # a message that is larger is no ping, whatever it says
TRANSACTION_MESSAGES_MAX: Final = 100
TRANSACTION_DURATION_MS_MAX: Final = 120_000  # from its first operation; then it is rolled back
TRANSACTION_SIZE_BYTES_MAX: Final = 33_554_432  # it is one frame of the log
TRANSACTIONS_MAX: Final = 1_000  # open at a time on one connection
TRANSACTIONS_SIZE_BYTES_MAX: Final = 268_435_456  # of all open ones; they wait in memory
DELETE_COUNT_MAX: Final = 4_000  # messages in one batch delete
WALKS_MAX: Final = 100  # requests about many messages under way at a time; more: ServerBusy
ABANDON_DELAY_MS_MAX: Final = 604_800_000  # ours: how long an abandoned message may be held back
ACCEPT_SESSION_MS_DEFAULT: Final = 65_000  # how long "next available session" waits
ACCEPT_SESSION_MS_MAX: Final = 3_600_000  # however long a client says it will
QUEUE_SIZE_MEGABYTES_DEFAULT: Final = 1_024
QUEUE_SIZE_MEGABYTES_MAX: Final = 81_920
PARTITION_SIZE_MEGABYTES_MAX: Final = 5_120

# --- requests ---------------------------------------------------------------------------------
PEEK_COUNT_MAX: Final = 1_000
PEEK_RESPONSE_BYTES_MAX: Final = 262_144  # Service Bus: a peek batch stops at 256 KB
SEQUENCE_NUMBERS_MAX: Final = 1_000  # in one request
BROWSE_COUNT_MAX: Final = 16_384  # ours: of one answer whose size the client has chosen
BROWSE_BYTES_MAX: Final = 4_194_304  # and the largest that it may choose
RANGES_MAX: Final = 1_024  # ours: ranges of sequence numbers that one request settles
RUNS_MAX: Final = 8_192  # ours: runs of sequence numbers in one answer
SAS_TOKEN_CHARS_MAX: Final = 8_192
JWT_CHARS_MAX: Final = 16_384  # with many roles and groups they reach a few thousand
HTTP_BODY_BYTES_MAX: Final = 1_048_576
HTTP_HEAD_BYTES_MAX: Final = 32_768  # three SAS tokens fit (own and two forward targets)
HTTP_REQUEST_DURATION_S_MAX: Final = 10.0  # first byte to last; then 408 and we hang up
HTTP_IDLE_DURATION_S_MAX: Final = 120.0  # between requests, and for a peer that does not read
REST_WAIT_S_MAX: Final = 55.0  # a receive; more is cut to this: many proxies hang up after 60
XML_DEPTH_MAX: Final = 32
XML_ELEMENTS_MAX: Final = 1_024  # a description has about 30
PAGE_COUNT_MAX: Final = 1_000  # entities in one feed; the SDKs ask for 100
STREAM_STALL_S_MAX: Final = 20.0  # a peer that takes nothing of a stream for so long is dropped
VIEWERS_MAX: Final = 32  # who looks at the live page at a time; more: ServerBusy
PAGE_BODY_BYTES_MAX: Final = 65_536  # shown of one message
PAGE_MESSAGES_MAX: Final = 100  # shown at a time
PAIR_REPORTS_MAX: Final = 1_000  # of paired clients, kept in memory for a minute
PAIR_REPORT_BYTES_MAX: Final = 65_536  # of one of them,
PAIR_REPORTS_BYTES_MAX: Final = 8_388_608  # and of all; more are refused

# --- storage ----------------------------------------------------------------------------------
SEGMENT_SIZE_MEGABYTES: Final = 64
SEGMENT_SIZE_MEGABYTES_MIN: Final = 8  # for the largest messages, and what settlements need
SEGMENT_SIZE_MEGABYTES_MAX: Final = 1_024
SEGMENT_SIZE_BYTES: Final = SEGMENT_SIZE_MEGABYTES * 1_048_576
SEGMENT_HEADER_BYTES: Final = 4_096
# One commit never outgrows what a segment can hold, and keeps a reader's memory bounded.
COMMIT_SIZE_BYTES_MAX: Final = 16_777_216
# A reply that waits so long for something that no commit is writing: /health says so.  A sync takes
# milliseconds, and one that takes seconds is a slow disk, which is another matter.
REPLY_STALLED_MS: Final = 5_000
BODY_CACHE_BYTES: Final = 67_108_864  # bodies kept after sending, to spare a read
CONNECTIONS_MAX: Final = 5_000  # Service Bus: AMQP connections a namespace
# Service Bus: receivers of one entity, those waiting for a session included; then it is busy.
RECEIVERS_MAX: Final = 5_000

# The sizes that Service Bus has to offer, in megabytes: of a partition, and of an entity without.
PARTITION_SIZES_MEGABYTES: Final = (1_024, 2_048, 3_072, 4_096, 5_120)
PREMIUM_SIZES_MEGABYTES: Final = (*PARTITION_SIZES_MEGABYTES, 10_240, 20_480, 40_960, 81_920)

# --- broker processes -------------------------------------------------------------------------
BROKERS_MAX: Final = 16  # one for each partition; more would have nothing to do
STORES_MAX: Final = 64  # every gateway link and every take-over looks at all of them
BROKER_BEAT_MS: Final = 250  # eight may be missed before anybody worries
# Without a sign of life for so long a broker is taken for hung.  A sync on a tired disk takes tens
# of milliseconds and a snapshot yields often, so 2 s is far from anything that is merely slow.
BROKER_SILENT_MS_MAX: Final = 2_000
BROKER_LAG_MS_MAX: Final = 5_000  # it beats, but its loop is this late: it serves nobody in time
BROKER_START_MS_MAX: Final = 15_000  # Python and our modules load in under one; then it is hung
# Recovery reads a whole log, and compiled code hands Python's lock on seldom: beats may be missed.
BROKER_OPENING_MS_MAX: Final = 20_000
BROKER_CLOSING_MS_MAX: Final = 30_000  # a store that is moving; its last commits may take 5 s
BROKER_DIAGNOSIS_MS_MAX: Final = 3_000  # stacks answer in 0.5 s; a full disk must not delay a kill
BROKER_WELL_MS: Final = 10_000  # so long a broker that came back has to be well to get its stores
# The first restart comes at once, then pauses double: a broker that dies at every start costs
# little, and one whose cause is gone is back within a minute.
BROKER_PAUSE_MS_MIN: Final = 500
BROKER_PAUSE_MS_MAX: Final = 60_000
# A store that fails is tried again soon, because most trouble is short; every try reads its log.
STORE_PAUSE_MS_MIN: Final = 250
STORE_PAUSE_MS_MAX: Final = 10_000
# Lost with its broker for the third time in a row, a store is suspected to be the cause and waits
# before it is given to the next: it must not take down one broker after the other.
STORE_LOSSES_FREE: Final = 2
BROKER_FORGIVEN_MS: Final = 60_000  # after so long without trouble the counting starts anew
DIAGNOSTICS_MAX: Final = 20  # bundles kept, each some tens of kilobytes
DIAGNOSTICS_LOG_LINES_MAX: Final = 500  # recent log lines of each process kept for a bundle

# --- throttling -------------------------------------------------------------------------------
THROTTLE_ADVICE_S: Final = 10  # what ServerBusy tells a client to wait
CREDITS_MANAGEMENT: Final = 10  # Service Bus: what a management operation costs; a message costs 1
# Whoever does no more than this in two seconds does not cause any pressure, and is served.
QUIET_OPERATIONS_MAX: Final = 20


@dataclass(frozen=True)
class Thresholds:
    """When a process is under pressure; 0 says that it is not watched for this."""

    cpu_share_max: float = 0.95  # of one core, and then only when the loop is late too:
    lag_ms_max: int = 1_000
    memory_bytes_max: int | None = None  # of all processes; None: four fifths of what there is
    disk_free_bytes_min: int = SEGMENT_SIZE_BYTES  # less, and the log could not go on
    # Begun and not answered.  A namespace of Service Bus with no unit of its own has 500,000.
    operations_max: int = 100_000


THRESHOLDS_DEFAULT: Final = Thresholds()

# --- profiles ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What a namespace allows, so that tests meet the ceilings of the tier used in production.

    A message beyond its size is refused at once; settings beyond theirs, and features that a tier
    lacks, are refused when an entity is created or updated.
    """

    name: str
    message_size_bytes_max: int
    # Of an entity without partitions, and of a partition; empty: whatever a description may say.
    sizes_megabytes: tuple[int, ...] = PARTITION_SIZES_MEGABYTES
    partition_sizes_megabytes: tuple[int, ...] = PARTITION_SIZES_MEGABYTES
    time_to_live_ms_max: int = 0  # of an entity's default; 0: none
    entities_max: int = ENTITIES_MAX  # queues and topics
    partitioned_entities_max: int = PARTITIONED_ENTITIES_MAX  # among them
    subscriptions_max: int = SUBSCRIPTIONS_MAX  # of one topic
    has_topics: bool = True
    has_sessions: bool = True
    has_duplicate_detection: bool = True
    has_transactions: bool = True
    has_forwarding: bool = True
    has_auto_delete: bool = True
    has_new_partitioned_entities: bool = True  # those that are there go on in any case
    credits_per_second: int = 0  # for the operations of a namespace; 0: as many as it can

    @property
    def tier(self) -> str:
        """As Service Bus calls it in its errors."""
        return self.name.partition("-")[0].title()


PROFILES: Final = {
    limits.name: limits
    for limits in (
        # Service Bus, tier by tier.
        Limits(
            name="basic",
            message_size_bytes_max=262_144,
            time_to_live_ms_max=1_209_600_000,  # 14 days
            has_topics=False,
            has_sessions=False,
            has_duplicate_detection=False,
            has_transactions=False,
            has_forwarding=False,
            has_auto_delete=False,
        ),
        Limits(name="standard", message_size_bytes_max=262_144, credits_per_second=1_000),
        Limits(
            name="premium",
            message_size_bytes_max=MESSAGE_SIZE_BYTES_MAX,
            sizes_megabytes=PREMIUM_SIZES_MEGABYTES,
            entities_max=ENTITIES_BEARABLE_MAX,
        ),
        # In 2017 this tier took no new partitioned entities; later it had them in another form.
        Limits(
            name="premium-2017",
            message_size_bytes_max=MESSAGE_SIZE_BYTES_MAX,
            sizes_megabytes=PREMIUM_SIZES_MEGABYTES,
            entities_max=ENTITIES_BEARABLE_MAX,
            has_new_partitioned_entities=False,
        ),
        # What this server itself can bear.
        Limits(
            name="unlimited",
            message_size_bytes_max=MESSAGE_SIZE_BYTES_MAX,
            sizes_megabytes=(),
            partition_sizes_megabytes=(),
            entities_max=ENTITIES_BEARABLE_MAX,
            partitioned_entities_max=60_000,  # sixteen entities each in the stores
            subscriptions_max=1_000_000,
        ),
    )
}
PROFILE_DEFAULT: Final = PROFILES["premium"]
