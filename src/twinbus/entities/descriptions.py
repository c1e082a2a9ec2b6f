"""What an entity is told to be: its name and its settings, checked.

Queues, topics and subscriptions share one set of settings; each kind has its own selection of them
(`SETTINGS`), and what is not among them is refused.

Properties are those of Service Bus, with units in the names: durations are whole milliseconds and
NEVER_MS stands for "forever".  Every value is checked when a description is made, so nobody behind
this module needs to look again.  Text from users is read strictly (an unknown key is an error),
text from our own log tolerantly (a newer version may have written more).

Never gives a setting a meaning: that is the queue's.
"""

import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import ClassVar, Final, Self, TypeVar

from twinbus.entities.message import NEVER_MS
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, QuotaExceeded
from twinbus.limits import (
    AUTO_DELETE_MS_MIN,
    DELIVERY_COUNT_MAX_DEFAULT,
    DELIVERY_COUNT_MAX_MAX,
    DUPLICATE_WINDOW_MS_DEFAULT,
    DUPLICATE_WINDOW_MS_MAX,
    DUPLICATE_WINDOW_MS_MIN,
    ENTITY_NAME_CHARS_MAX,
    LOCK_DURATION_MS_DEFAULT,
    LOCK_DURATION_MS_MAX,
    LOCK_DURATION_MS_MIN,
    MESSAGE_SIZE_BYTES_MAX,
    PARTITION_SIZE_MEGABYTES_MAX,
    QUEUE_SIZE_MEGABYTES_DEFAULT,
    QUEUE_SIZE_MEGABYTES_MAX,
    SHARED_ACCESS_CHARS_MAX,
    SHARED_ACCESS_RULES_MAX,
    SUBSCRIPTION_NAME_CHARS_MAX,
    TIME_TO_LIVE_MS_MIN,
    USER_METADATA_CHARS_MAX,
)

STATUS_ACTIVE: Final = "Active"
DISABLED: Final = "Disabled"
SEND_DISABLED: Final = "SendDisabled"
RECEIVE_DISABLED: Final = "ReceiveDisabled"
STATUSES: Final = (STATUS_ACTIVE, DISABLED, SEND_DISABLED, RECEIVE_DISABLED)

FIXED_AT_CREATION: Final = (
    "requires_session",
    "requires_duplicate_detection",
    "enable_partitioning",
)
MESSAGE_SIZE_KILOBYTES_MAX: Final = MESSAGE_SIZE_BYTES_MAX // 1_024
RIGHTS: Final = ("Listen", "Manage", "Send")
_STAMPS: Final = frozenset(("created_utc_ms", "updated_utc_ms"))


@dataclass(frozen=True)
class SharedAccessRule:
    """An authorization rule of an entity, as its description carries it."""

    name: str
    rights: tuple[str, ...]  # out of Listen, Manage, Send
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_utc_ms: int = 0
    modified_utc_ms: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= SHARED_ACCESS_CHARS_MAX or not self.name.isprintable():
            raise ArgumentInvalid(
                f"An authorization rule's name has 1 to {SHARED_ACCESS_CHARS_MAX} characters."
            )
        if not self.rights or not set(self.rights) <= set(RIGHTS):
            raise ArgumentInvalid(
                f"The rights of an authorization rule are some of {', '.join(RIGHTS)}."
            )
        for key in (self.primary_key, self.secondary_key):
            if not 1 <= len(key) <= SHARED_ACCESS_CHARS_MAX:
                raise ArgumentInvalid(
                    f"A key of an authorization rule has 1 to {SHARED_ACCESS_CHARS_MAX} characters."
                )


@dataclass(frozen=True)
class QueueDescription:
    """The settings of one queue.  Changed by `dataclasses.replace`, which checks again."""

    KIND: ClassVar[str] = "queue"
    # Settings that other kinds have and queues lack.
    FOREIGN: ClassVar[frozenset[str]] = frozenset(
        ("dead_lettering_on_filter_evaluation_exceptions", "filtering_messages_before_publishing")
    )

    lock_duration_ms: int = LOCK_DURATION_MS_DEFAULT
    max_delivery_count: int = DELIVERY_COUNT_MAX_DEFAULT
    default_time_to_live_ms: int = NEVER_MS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    filtering_messages_before_publishing: bool = False
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_window_ms: int = DUPLICATE_WINDOW_MS_DEFAULT
    max_size_megabytes: int = QUEUE_SIZE_MEGABYTES_DEFAULT
    max_message_size_kilobytes: int = MESSAGE_SIZE_KILOBYTES_MAX
    enable_partitioning: bool = False
    enable_batched_operations: bool = True
    enable_express: bool = False
    support_ordering: bool = True
    status: str = STATUS_ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle_ms: int = NEVER_MS
    user_metadata: str | None = None
    authorization_rules: tuple[SharedAccessRule, ...] = ()
    created_utc_ms: int = 0  # UTC; the store's to set, as is the next one
    updated_utc_ms: int = 0

    def __post_init__(self) -> None:
        _check_range(
            "lock_duration_ms", self.lock_duration_ms, LOCK_DURATION_MS_MIN, LOCK_DURATION_MS_MAX
        )
        _check_range("max_delivery_count", self.max_delivery_count, 1, DELIVERY_COUNT_MAX_MAX)
        _check_range(
            "default_time_to_live_ms", self.default_time_to_live_ms, TIME_TO_LIVE_MS_MIN, NEVER_MS
        )
        _check_range(
            "duplicate_detection_window_ms",
            self.duplicate_detection_window_ms,
            DUPLICATE_WINDOW_MS_MIN,
            DUPLICATE_WINDOW_MS_MAX,
        )
        _check_range(
            "max_size_megabytes",
            self.max_size_megabytes,
            1,
            # Of each partition; together they are as large as the largest queue without any.
            PARTITION_SIZE_MEGABYTES_MAX if self.enable_partitioning else QUEUE_SIZE_MEGABYTES_MAX,
        )
        _check_range(
            "max_message_size_kilobytes",
            self.max_message_size_kilobytes,
            1,
            MESSAGE_SIZE_KILOBYTES_MAX,
        )
        _check_range(
            "auto_delete_on_idle_ms", self.auto_delete_on_idle_ms, AUTO_DELETE_MS_MIN, NEVER_MS
        )
        _check_range("created_utc_ms", self.created_utc_ms, 0, NEVER_MS)
        _check_range("updated_utc_ms", self.updated_utc_ms, 0, NEVER_MS)
        if self.status not in STATUSES:
            raise ArgumentInvalid(
                f"status is '{self.status[:64]}'; allowed are {', '.join(STATUSES)}."
            )
        if len(self.user_metadata or "") > USER_METADATA_CHARS_MAX:
            raise ArgumentOutOfRange(
                f"user_metadata has {len(self.user_metadata or '')} characters; "
                f"allowed are {USER_METADATA_CHARS_MAX}."
            )
        for target in (self.forward_to, self.forward_dead_lettered_messages_to):
            if target is not None:
                validate_path(target)
        if len(self.authorization_rules) > SHARED_ACCESS_RULES_MAX:
            raise QuotaExceeded(
                f"An entity has at most {SHARED_ACCESS_RULES_MAX} authorization rules."
            )
        if len({rule.name for rule in self.authorization_rules}) < len(self.authorization_rules):
            raise ArgumentInvalid("Two authorization rules have the same name.")

    def to_json(self) -> str:
        """The same text for the same description, always."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` of this or a newer version wrote."""
        values = json.loads(text)
        known = {each.name for each in fields(cls)}
        return _made(cls, {key: value for key, value in values.items() if key in known})

    @classmethod
    def settings(cls) -> frozenset[str]:
        """The names of the settings that this kind of entity has."""
        return frozenset(each.name for each in fields(cls)) - cls.FOREIGN - _STAMPS

    @classmethod
    def from_mapping(cls, values: dict[str, object]) -> Self:
        """Read what a user wrote: properties by name, of which every one must be known."""
        known = cls.settings()
        for key in values:
            if key not in known:
                raise ArgumentInvalid(
                    f"'{str(key)[:64]}' is not a property of a {cls.KIND}; "
                    f"properties are {', '.join(sorted(known))}."
                )
        return _made(cls, values)

    def stamped(self, created_utc_ms: int, updated_utc_ms: int) -> Self:
        """The same description with the times of its entity."""
        return replace(self, created_utc_ms=created_utc_ms, updated_utc_ms=updated_utc_ms)

    def check_update(self, newer: "QueueDescription") -> None:
        """Refuse to change what is fixed when an entity is created."""
        for name in FIXED_AT_CREATION:
            before: object = getattr(self, name)
            after: object = getattr(newer, name)
            if before != after:
                raise ArgumentInvalid(f"{name} is {before} and cannot be changed to {after}.")


@dataclass(frozen=True)
class TopicDescription(QueueDescription):
    """The settings of one topic."""

    KIND: ClassVar[str] = "topic"
    FOREIGN: ClassVar[frozenset[str]] = frozenset(
        (
            "lock_duration_ms",
            "max_delivery_count",
            "dead_lettering_on_message_expiration",
            "dead_lettering_on_filter_evaluation_exceptions",
            "requires_session",
            "forward_to",
            "forward_dead_lettered_messages_to",
        )
    )


@dataclass(frozen=True)
class SubscriptionDescription(QueueDescription):
    """The settings of one subscription.  What it lacks it takes from its topic."""

    KIND: ClassVar[str] = "subscription"
    FOREIGN: ClassVar[frozenset[str]] = frozenset(
        (
            "requires_duplicate_detection",
            "duplicate_detection_window_ms",
            "max_size_megabytes",
            "max_message_size_kilobytes",
            "enable_partitioning",
            "enable_express",
            "support_ordering",
            "filtering_messages_before_publishing",
            "authorization_rules",
        )
    )


DESCRIPTIONS: Final[dict[str, type[QueueDescription]]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}

D = TypeVar("D", bound=QueueDescription)


def _made(cls: type[D], values: dict[str, object]) -> D:
    """A description of values whose types nobody has checked."""
    made = dict(values)
    for each in fields(cls):
        value = values.get(each.name, each.default)
        if each.name == "authorization_rules":
            made[each.name] = _made_rules(value)
            continue
        if each.default is None:
            fits = value is None or isinstance(value, str)
        else:
            fits = type(value) is type(each.default)  # True is an int, but no duration
        if not fits:
            expected = "text" if each.default is None else type(each.default).__name__
            raise ArgumentInvalid(f"{each.name} is {str(value)[:64]!r}, which is not {expected}.")
    return cls(**made)  # type: ignore[arg-type]  # checked above


def _made_rules(value: object) -> tuple[SharedAccessRule, ...]:
    rules: list[SharedAccessRule] = []
    for entry in value if isinstance(value, list | tuple) else ():
        if isinstance(entry, SharedAccessRule):
            rules.append(entry)
        else:
            rules.append(SharedAccessRule(**{**entry, "rights": tuple(entry["rights"])}))
    return tuple(rules)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        top = "unlimited" if high == NEVER_MS else str(high)
        raise ArgumentOutOfRange(f"{name} is {value}; allowed is {low} to {top}.")


# --- names ------------------------------------------------------------------------------------

# Service Bus looks at each segment of a name, and only at its characters: it may begin and end with
# any of them.  `$` is for what is the bus's own.
_NAME: Final = re.compile(r"[A-Za-z0-9._~/-]+")
# HTTP clients resolve these before they send a request (RFC 3986 §5.2.4), browsers in the form of
# `%2e` too: who wrote such a name would reach another entity, or none.
_DOTS: Final = frozenset((".", ".."))


def validate_name(name: str) -> None:
    """Refuse what Service Bus refuses as the name of a new entity.

    Names differ only if they differ in more than case; whoever keeps them folds with `lower()`.
    """
    validate_path(name)
    for segment in name.split("/"):
        if segment in _DOTS:
            raise ArgumentInvalid(
                f"The entity name '{name[:64]}' has the path segment '{segment}', which HTTP "
                "clients take for the way to another entity."
            )


def validate_path(name: str) -> None:
    """Refuse what cannot be an entity's name, and paths that address something else.

    A path of dots passes: earlier versions made entities with such names, which go on working.
    """
    shown = name[:64]
    if not 1 <= len(name) <= ENTITY_NAME_CHARS_MAX:
        raise ArgumentOutOfRange(
            f"The entity name '{shown}' has {len(name)} characters; "
            f"allowed are 1 to {ENTITY_NAME_CHARS_MAX}."
        )
    if _NAME.fullmatch(name) is None:
        raise ArgumentInvalid(
            f"The entity name '{shown}' is not allowed: path segments, with / between them, "
            "contain only letters, digits, and . - _ ~"
        )
    segments = name.lower().split("/")
    if "" in segments:
        raise ArgumentInvalid(
            f"The entity name '{shown}' has an empty path segment: / stands only between two."
        )
    if "subscriptions" in segments[1:]:
        raise ArgumentInvalid(
            f"The entity name '{shown}' has the segment 'Subscriptions', "
            "which addresses a topic's subscription."
        )


SUBSCRIPTIONS: Final = "/Subscriptions/"
# In a store that several namespaces share, a name begins with its namespace's and this.
PREFIX_END: Final = ":"


def validate_subscription_name(name: str) -> None:
    """A subscription's own name: one path segment, shorter than others."""
    shown = name[:64]
    if not 1 <= len(name) <= SUBSCRIPTION_NAME_CHARS_MAX:
        raise ArgumentOutOfRange(
            f"The subscription name '{shown}' has {len(name)} characters; "
            f"allowed are 1 to {SUBSCRIPTION_NAME_CHARS_MAX}."
        )
    if "/" in name:
        raise ArgumentInvalid(f"The subscription name '{shown}' must not contain a slash.")
    validate_name(name)


def subscription_path(topic: str, subscription: str) -> str:
    """Under which name a topic's subscription is kept, addressed and shown."""
    return f"{topic}{SUBSCRIPTIONS}{subscription}"


# --- ISO 8601 durations -----------------------------------------------------------------------

# The longest duration of .NET, which Service Bus writes for "forever".
_FOREVER: Final = "P10675199DT2H48M5.4775807S"
_FOREVER_MS: Final = 922_337_203_685_477
_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15})(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration; fractions of a millisecond are cut.

    A year counts as 365 days and a month as 30, as .NET does it.
    """
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ArgumentInvalid(
            f"'{text[:64]}' is not an ISO 8601 duration; write for example PT1M or P14DT12H."
        )
    years, months, weeks, days, _, hours, minutes, seconds, fraction = match.groups("0")
    total_ms = (
        (int(years) * 365 + int(months) * 30 + int(weeks) * 7 + int(days)) * _DAY_MS
        + int(hours) * _HOUR_MS
        + int(minutes) * _MINUTE_MS
        + int(seconds) * _SECOND_MS
        + int(fraction.ljust(3, "0")[:3])
    )
    return NEVER_MS if total_ms >= _FOREVER_MS else total_ms


def format_duration(duration_ms: int) -> str:
    """The ISO 8601 text of a duration, as Service Bus writes it."""
    if duration_ms >= _FOREVER_MS:
        return _FOREVER
    days, rest = divmod(duration_ms, _DAY_MS)
    hours, rest = divmod(rest, _HOUR_MS)
    minutes, rest = divmod(rest, _MINUTE_MS)
    seconds, milliseconds = divmod(rest, _SECOND_MS)
    date = f"{days}D" if days else ""
    time = f"{hours}H" if hours else ""
    time += f"{minutes}M" if minutes else ""
    if milliseconds:
        time += f"{seconds}.{milliseconds:03d}".rstrip("0") + "S"
    elif seconds or not (date or time):
        time += f"{seconds}S"
    return f"P{date}T{time}" if time else f"P{date}"
