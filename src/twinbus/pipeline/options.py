"""The options of `format("servicebus")`: checked strictly, or refused with a reason.

Spark passes every option as text, with its name in lower case.  The error for an unknown name
suggests the nearest known one, because a typo that is ignored would change what a query reads.
For a contradiction it names both options.  No error shows a value that may hold a key.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, Self

from twinbus.client.connection_string import ConnectionString
from twinbus.errors import ConfigError
from twinbus.pipeline.source.offsets import Offset

MAX_BATCH_BYTES_DEFAULT: Final = 16 * 1024 * 1024
MAX_BATCH_BYTES_MAX: Final = 1024 * 1024 * 1024
TASKS_MAX: Final = 100_000
NUMBER_MAX: Final = (1 << 63) - 1

SUB_QUEUES: Final[Mapping[str, str]] = {
    "none": "",
    "deadLetter": "/$DeadLetterQueue",
    "transferDeadLetter": "/$Transfer/$DeadLetterQueue",
}
OPERATIONS: Final = ("auto", "twinbus", "standard")

# Every option of the source, and what it is; docs/reference/spark.md is checked against it.
SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    "connectionString": "of the namespace; required",
    "entityPath": "the queue, or `topic/Subscriptions/name`",
    "entityPaths": "several of them, with commas between",
    "entityPattern": "a regular expression that a whole path must match",
    "subQueue": "`none`, `deadLetter` or `transferDeadLetter` of each of them",
    "startingOffsets": "`earliest`, or an offset as JSON",
    "endingOffsets": "`latest`, or an offset as JSON; batch only",
    "startingTime": "only what was enqueued then or later; batch only",
    "endingTime": "only what was enqueued before; batch only",
    "maxOffsetsPerTrigger": "at most so many sequence numbers in a micro-batch; streams only",
    "numTasks": "how many tasks a read is divided into",
    "settle": "`none`, or `delete` what a micro-batch has read; streams only",
    "includeAmqp": "`true`: the column `amqp` as well",
    "failOnDataLoss": "`false`: begin anew with an entity that was deleted and made again",
    "operations": "`auto`, `twinbus` or `standard` (any Service Bus)",
    "maxBatchBytes": "bytes of messages in one Arrow batch",
}
BATCH_ONLY: Final = ("endingOffsets", "startingTime", "endingTime")
STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)


class GivenOptions:
    """The user's options, taken by name; every error names the option."""

    def __init__(
        self, given: Mapping[str, str], known: Sequence[str], ignored: Sequence[str] = ()
    ) -> None:
        """`ignored`: what Spark itself puts among the options."""
        self._given = {name.lower(): value for name, value in given.items()}
        spelled = {name.lower(): name for name in known}
        for name in sorted(
            self._given.keys() - spelled.keys() - {each.lower() for each in ignored}
        ):
            near = get_close_matches(name, spelled, n=1, cutoff=0.5)
            if name == "path" and "entitypath" in spelled:
                near = ["entitypath"]
            hint = f"did you mean {spelled[near[0]]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"there is no option {name[:64]}; {hint}")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        """None if it is missing or blank."""
        return self._given.get(name.lower(), "").strip() or None

    def required(self, name: str, hint: str) -> str:
        found = self.text(name)
        if found is None:
            raise ConfigError(f"the option {name} is missing: {hint}")
        return found

    def number(self, name: str, default: int, low: int, high: int) -> int:
        found = self.text(name)
        if found is None:
            return default
        # isdigit alone would take ², which int() does not.
        if not (found.isascii() and found.isdigit()) or not low <= int(found) <= high:
            raise self.refusal(name, f"is a whole number of {low} to {high}")
        return int(found)

    def flag(self, name: str, default: bool) -> bool:
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in {"true", "false"}:
            raise self.refusal(name, "is true or false")
        return found.lower() == "true"

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """The first choice is the default; case does not matter."""
        found = self.text(name)
        if found is None:
            return choices[0]
        for each in choices:
            if each.lower() == found.lower():
                return each
        raise self.refusal(name, f"is one of {', '.join(choices)}")

    def time_ms(self, name: str) -> int | None:
        """A time as ISO 8601; without a zone it is UTC."""
        found = self.text(name)
        if found is None:
            return None
        try:
            moment = datetime.fromisoformat(found)
        except ValueError:
            raise self.refusal(name, "is a time such as 2026-11-16T10:30:00Z") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)

    def offset(self, name: str, nothing: str) -> Offset | None:
        """An offset as JSON; None for the word that stands for no bound at all."""
        found = self.text(name)
        if found is None or found.lower() == nothing:
            return None
        try:
            return Offset.from_text(found)
        except ConfigError as error:
            raise self.refusal(name, f"is {nothing} or an offset as JSON: {error}") from None

    def refusal(self, name: str, rule: str) -> ConfigError:
        return ConfigError(f"the option {name} {rule}; given: {self._given[name.lower()][:64]!r}")


@dataclass(frozen=True)
class SourceOptions:
    """Checked options of a reader.  Pickled into the tasks."""

    connection_string: str = field(repr=False)
    namespace: str  # host (and port)
    paths: tuple[str, ...]  # with the sub-queue; empty if there is a pattern
    pattern: str | None
    suffix: str  # of the sub-queue
    starting: Offset | None
    ending: Offset | None
    starting_time_ms: int | None
    ending_time_ms: int | None
    max_per_trigger: int  # 0: no limit
    task_count: int  # 0: one for each partition
    deletes: bool
    include_amqp: bool
    fail_on_data_loss: bool
    operations: str
    max_batch_bytes: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        options = GivenOptions(given, list(SOURCE_OPTIONS))
        connection_string = options.required(
            "connectionString", "it says where the namespace is and who you are"
        )
        target = ConnectionString.parse(connection_string)
        suffix = SUB_QUEUES[options.choice("subQueue", list(SUB_QUEUES))]
        paths, pattern = _entities(options, target.entity_path)
        return cls(
            connection_string=connection_string,
            namespace=target.authority,
            paths=tuple(_with_sub_queue(path, suffix) for path in paths),
            pattern=pattern,
            suffix=suffix,
            starting=options.offset("startingOffsets", "earliest"),
            ending=options.offset("endingOffsets", "latest"),
            starting_time_ms=options.time_ms("startingTime"),
            ending_time_ms=options.time_ms("endingTime"),
            max_per_trigger=options.number("maxOffsetsPerTrigger", 0, 1, NUMBER_MAX),
            task_count=options.number("numTasks", 0, 1, TASKS_MAX),
            deletes=options.choice("settle", ["none", "delete"]) == "delete",
            include_amqp=options.flag("includeAmqp", False),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            operations=options.choice("operations", OPERATIONS),
            max_batch_bytes=options.number(
                "maxBatchBytes", MAX_BATCH_BYTES_DEFAULT, 1, MAX_BATCH_BYTES_MAX
            ),
        )

    def check_for_batch(self, given: Mapping[str, str]) -> None:
        options = GivenOptions(given, list(SOURCE_OPTIONS))
        for name in STREAM_ONLY:
            if options.has(name):
                raise ConfigError(f"the option {name} is for streams; this is a batch read")
        if self.deletes:
            raise ConfigError(
                "settle=delete is for streams: only a checkpoint tells what has been dealt with"
            )
        if (
            self.starting_time_ms is not None
            and self.ending_time_ms is not None
            and self.starting_time_ms > self.ending_time_ms
        ):
            raise ConfigError("startingTime is after endingTime")

    def check_for_stream(self, given: Mapping[str, str]) -> None:
        options = GivenOptions(given, list(SOURCE_OPTIONS))
        for name in BATCH_ONLY:
            if options.has(name):
                raise ConfigError(f"the option {name} is for batch reads; this is a stream")


def _entities(options: GivenOptions, of_string: str | None) -> tuple[list[str], str | None]:
    """The paths that are named, or the pattern."""
    names = ("entityPath", "entityPaths", "entityPattern")
    given = [name for name in names if options.text(name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} contradict each other; keep one")
    if of_string is not None and given and options.text(given[0]) != of_string:
        raise ConfigError(f"{given[0]} and the EntityPath of the connection string differ")
    if given == ["entityPattern"]:
        pattern = options.required("entityPattern", "")
        try:
            re.compile(pattern)
        except re.error as error:
            rule = f"is a regular expression ({error})"
            raise options.refusal("entityPattern", rule) from None
        return [], pattern
    text = options.text(given[0]) if given else of_string
    if text is None:
        raise ConfigError(f"what is to be read is missing: give one of {', '.join(names)}")
    paths = text.split(",") if given == ["entityPaths"] else [text]
    paths = [spelled_path(path) for path in paths]
    if "" in paths:
        raise ConfigError("entityPaths has an empty place between its commas")
    lowered = [path.lower() for path in paths]
    twice = [path for path in paths if lowered.count(path.lower()) > 1]
    if twice:
        raise ConfigError(f"entityPaths names {twice[0][:64]} twice")
    return paths, None


def spelled_path(path: str) -> str:
    """A path in the one spelling that is used here; the bus takes any case."""
    parts = [part.strip() for part in path.strip().strip("/").split("/")]
    fixed = {"subscriptions": "Subscriptions", "$deadletterqueue": "$DeadLetterQueue"}
    fixed["$transfer"] = "$Transfer"
    return "/".join(
        fixed.get(part.lower(), part) if place else part for place, part in enumerate(parts)
    )


def is_sub_queue(path: str) -> bool:
    """Dead letters keep their numbers, so lower ones may come after higher ones."""
    return path.lower().endswith("/$deadletterqueue")


def _with_sub_queue(path: str, suffix: str) -> str:
    if suffix and is_sub_queue(path):
        raise ConfigError(f"subQueue and the end of the path {path[:64]} contradict each other")
    return path + suffix
