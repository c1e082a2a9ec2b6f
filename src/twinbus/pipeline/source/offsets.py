"""Where a query is in the entities that it reads, and what it reads next.  Pure: no bus, no Spark.

An offset is JSON with sorted keys (Spark compares the text):

    {"created": {"orders": 1763280000000},       when the entity was made, where the bus tells
     "from": {"orders/0": 1000},                 where reading began, if not at the beginning
     "orders/0": 1042,                           partition 0: the next sequence number
     "orders/$deadletterqueue/0": [[3, 5]]}      a sub-queue: what has been read and is still there

Paths stand in lower case, as the bus takes them in any.  A partition that is not named has not been
read at all, so new ones begin at their beginning, and an offset never goes back.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from twinbus.entities.partitions import COUNTER_BITS
from twinbus.errors import ConfigError, TwinbusError
from twinbus.pipeline.source.runs import Runs, count, intersect, lowest, merge, subtract

CREATED: Final = "created"
FROM: Final = "from"
Position = int | Runs


class DataLoss(TwinbusError):
    """What a checkpoint has counted is not what is there now."""


def key_of(path: str, partition: int) -> str:
    return f"{path.lower()}/{partition}"


def split_key(key: str) -> tuple[str, int]:
    path, _, digits = key.rpartition("/")
    if not path or not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f"{key[:64]!r} is not <entity path>/<partition>")
    return path, int(digits)


def first_of(partition: int) -> int:
    """Below every sequence number of a partition."""
    return partition << COUNTER_BITS


@dataclass(frozen=True)
class Offset:
    """What has been read, by partition."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    created: Mapping[str, int] = field(default_factory=dict)
    origins: Mapping[str, Position] = field(default_factory=dict)

    @classmethod
    def from_text(cls, text: str) -> Self:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError('not an object such as {"orders/0": 1}')
        return cls.from_json(found)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        positions = {key: data[key] for key in data.keys() - {CREATED, FROM}}
        created = data.get(CREATED, {})
        if not isinstance(created, dict) or not all(type(ms) is int for ms in created.values()):
            raise ConfigError(f'"{CREATED}" of an offset holds times in milliseconds')
        return cls(
            _positions(positions),
            {path.lower(): ms for path, ms in created.items()},
            _positions(data.get(FROM, {})),
        )

    def to_json(self) -> dict[str, object]:
        """The same offset always gives the same text."""
        plain = _plain(self.positions)
        if self.created:
            plain[CREATED] = dict(sorted(self.created.items()))
        if self.origins:
            plain[FROM] = dict(sorted(_plain(self.origins).items()))
        return dict(sorted(plain.items()))

    def number(self, key: str) -> int:
        """The next number to be read of a main part."""
        return _as_number(key, self.positions.get(key, 0))

    def runs(self, key: str) -> Runs:
        """The numbers of a sub-queue that have been read; one number stands for all below it."""
        return _as_runs(key, self.positions.get(key, ()))

    def own(self, key: str) -> Runs:
        """What the query itself has read, not what it was told to leave out."""
        position = self.positions.get(key, ())
        return subtract(_as_runs(key, position), _as_runs(key, self.origins.get(key, ())))

    def without(self, paths: Iterable[str]) -> "Offset":
        """As if these entities had never been read."""
        gone = {path.lower() for path in paths}
        return Offset(
            {key: at for key, at in self.positions.items() if split_key(key)[0] not in gone},
            {path: ms for path, ms in self.created.items() if path not in gone},
            {key: at for key, at in self.origins.items() if split_key(key)[0] not in gone},
        )


def _positions(found: object) -> dict[str, Position]:
    if not isinstance(found, dict):
        raise ConfigError(f'"{FROM}" of an offset holds positions by partition')
    return {key_of(*split_key(key)): _position(key, value) for key, value in found.items()}


def _position(key: str, value: object) -> Position:
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, list) and all(_is_run(run) for run in value):
        return merge((first, end) for first, end in value)
    raise ConfigError(f"the offset of {key[:64]!r} is neither a number nor runs of numbers")


def _is_run(run: object) -> bool:
    return isinstance(run, list) and len(run) == 2 and all(type(each) is int for each in run)


def _plain(positions: Mapping[str, Position]) -> dict[str, object]:
    return {
        key: position if isinstance(position, int) else [list(run) for run in position]
        for key, position in positions.items()
    }


def _as_number(key: str, position: Position) -> int:
    if not isinstance(position, int):
        raise ConfigError(f"the offset of {key[:64]!r} must be one number; it is not a sub-queue")
    return max(position, first_of(split_key(key)[1]))


def _as_runs(key: str, position: Position) -> Runs:
    if isinstance(position, int):
        return merge([(first_of(split_key(key)[1]), position)])
    return position


@dataclass(frozen=True, slots=True)
class PartitionStock:
    """What one partition holds now.  `runs` of a sub-queue only: the numbers that are there."""

    path: str
    partition: int
    created_ms: int | None
    first: int
    next: int
    count: int
    runs: Runs | None = None

    @property
    def key(self) -> str:
        return key_of(self.path, self.partition)


def checked(start: Offset, stocks: Sequence[PartitionStock], fails: bool) -> Offset:
    """`start`, if it is about what is there now; DataLoss, or without what is not, if it is not."""
    lost: dict[str, str] = {}
    for stock in stocks:
        if stock.created_ms is None:
            continue  # a bus that does not tell that does not tell the end of an empty queue either
        if start.created.get(stock.path.lower(), stock.created_ms) != stock.created_ms:
            lost[stock.path] = "has been deleted and made again since the checkpoint"
        elif stock.runs is None and start.number(stock.key) > max(stock.next, stock.first):
            lost[stock.path] = (
                f"ends at number {stock.next} in partition {stock.partition}; the checkpoint has "
                f"read up to {start.number(stock.key)}"
            )
    if lost and fails:
        path, reason = next(iter(lost.items()))
        raise DataLoss(
            f"{path[:64]!r} {reason}. Begin with a new checkpoint, or give failOnDataLoss=false to "
            "go on with what is there now."
        )
    return start.without(lost) if lost else start


def check_names(offset: Offset, paths: Iterable[str], option: str) -> None:
    """An offset that the user gave names only what is read."""
    known = {path.lower() for path in paths}
    for key in offset.positions:
        if split_key(key)[0] not in known:
            raise ConfigError(f"{option} names {key[:64]!r}, which is not read here")


def unread(start: Offset, stock: PartitionStock) -> int:
    """How many messages are to be read at most: no more than there are numbers, or messages."""
    if stock.runs is not None:
        return count(subtract(stock.runs, start.runs(stock.key)))
    return max(0, min(stock.count, stock.next - max(start.number(stock.key), stock.first)))


def shares(limit: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """A limit divided in proportion; at least one for whoever wants any, or it might wait for ever.

    No limit: 0.
    """
    total = sum(wanted.values())
    if limit <= 0 or total <= limit:
        return dict(wanted)
    return {key: min(want, max(1, limit * want // total)) for key, want in wanted.items()}


def advance(start: Offset, stocks: Sequence[PartitionStock], limit: int = 0) -> Offset:
    """Where the next batch ends.  What is not in stock (a partition that is down) stays."""
    wanted = {stock.key: unread(start, stock) for stock in stocks}
    share = shares(limit, wanted)
    positions = dict(start.positions)
    created = dict(start.created)
    for stock in stocks:
        key = stock.key
        if stock.created_ms is not None:
            created[stock.path.lower()] = stock.created_ms
        if stock.runs is None:
            begin = max(start.number(key), stock.first)
            # To the very end if the share has room for all: few messages with large gaps between
            # are one batch, and an empty partition moves on as well.
            is_all = share[key] >= wanted[key]
            positions[key] = max(begin, stock.next) if is_all else begin + share[key]
            continue
        read = start.runs(key)
        taken = lowest(subtract(stock.runs, read), share[key])
        # What has gone is forgotten only when something comes: it alone makes no new batch.
        positions[key] = merge((*intersect(read, stock.runs), *taken)) if taken else read
    return Offset(positions, created, start.origins)


def limited(end: Offset, bound: Offset | None) -> Offset:
    """`end`, but nothing beyond what the user set as the end."""
    if bound is None:
        return end
    positions = dict(end.positions)
    for key, position in end.positions.items():
        if key in bound.positions:
            if isinstance(position, int):
                positions[key] = min(position, bound.number(key))
            else:
                positions[key] = intersect(position, bound.runs(key))
    return Offset(positions, end.created, end.origins)


def lifted(start: Offset, stocks: Sequence[PartitionStock]) -> Offset:
    """`start`, but not before the first number that is there, so that sizes say something."""
    positions = dict(start.positions)
    for stock in stocks:
        if stock.runs is None:
            positions[stock.key] = max(start.number(stock.key), stock.first)
    return Offset(positions, start.created, start.origins)


def capped(
    stocks: Sequence[PartitionStock], target: Mapping[str, PartitionStock]
) -> list[PartitionStock]:
    """What there is now and was there already at the time of `target`."""
    found: list[PartitionStock] = []
    for stock in stocks:
        earlier = target.get(stock.key)
        if earlier is None:
            continue
        runs = None
        if stock.runs is not None and earlier.runs is not None:
            runs = intersect(stock.runs, earlier.runs)
        end = min(stock.next, earlier.next)
        first = min(stock.first, end)
        found.append(
            PartitionStock(
                stock.path, stock.partition, stock.created_ms, first, end, stock.count, runs
            )
        )
    return found
