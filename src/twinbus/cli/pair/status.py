"""`twinbus pair status`: both namespaces and their backlog queues, seen from outside.

Whether senders have failed over is known only in their own processes (`status()` of the paired
client).  What can be seen from outside is who answers, how much waits, for how long, and for whom.
"""

import argparse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus.cli.exit_codes import NO
from twinbus.cli.pair.backlog import Backlog, BacklogQueue, sdk_options
from twinbus.cli.printing import print_json, print_table
from twinbus.cli.progress import span
from twinbus.client.admin import API_VERSION
from twinbus.client.connection_string import ConnectionString
from twinbus.client.http import REFUSED, HttpClient, Unreachable
from twinbus.clock import SystemClock
from twinbus.pairing.rules import PATH

SAMPLE: Final = 100  # messages of a queue that are looked at
_AT_A_TIME: Final = 10  # queues that are looked at together: the SDK takes its time to connect
_NOBODY: Final = "(no x-ms-path)"
_UNMARKED: Final = "(unmarked)"
_PATH_CHARS_MAX: Final = 260


@dataclass(frozen=True)
class Namespace:
    """One half of the pair."""

    namespace: str
    reachable: bool
    reason: str  # why it is not, or what it says


@dataclass(frozen=True)
class QueueStatus:
    """A backlog queue with what a look at its first messages tells."""

    queue: str
    active: int
    dead_letter: int
    oldest_s: float | None
    destinations: dict[str, int]  # of the messages looked at
    strangers: dict[str, int]  # those of them that no syphon of this primary moves, by whose
    sampled: int


def run(options: argparse.Namespace) -> int:
    primary, secondary = _knock(options.primary), _knock(options.secondary)
    found = _look(options) if secondary.reachable else []
    if options.json:
        document = {
            "primary": asdict(primary),
            "secondary": asdict(secondary),
            "backlog_queues": [asdict(status) for status in found],
            "active": sum(status.active for status in found),
            "dead_letter": sum(status.dead_letter for status in found),
        }
        print_json(document)
    else:
        _print(primary, secondary, found)
    return 0 if secondary.reachable else NO


def _knock(connection_string: str) -> Namespace:
    """Whoever answers at all is reachable, even if the answer is no."""
    name = ConnectionString.parse(connection_string).authority
    path = f"/$Resources/queues?$skip=0&$top=1&{API_VERSION}"
    try:
        status, _ = HttpClient(connection_string).exchange("GET", path, None, {})
    except Unreachable as error:
        return Namespace(name, False, str(error))
    return Namespace(name, True, f"answers with HTTP status {status}" if status >= REFUSED else "")


def _look(options: argparse.Namespace) -> list[QueueStatus]:
    backlog = Backlog(options)
    text, queues = options.secondary, backlog.queues()
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(lambda queue: _status(text, queue, backlog), queues))


def _status(connection_string: str, queue: BacklogQueue, backlog: Backlog) -> QueueStatus:
    """Only a queue that has something is worth a connection."""
    oldest_s: float | None = None
    destinations: Counter[str] = Counter()
    strangers: Counter[str] = Counter()
    if queue.active:
        with (
            ServiceBusClient.from_connection_string(
                connection_string, **sdk_options(), retry_total=0
            ) as client,
            client.get_queue_receiver(queue.name) as receiver,
        ):
            try:
                messages = receiver.peek_messages(max_message_count=SAMPLE)
            except ServiceBusError:
                messages = []  # the counts are worth showing without
        for message in messages:
            given = message.application_properties or {}
            properties = {_text(key): value for key, value in given.items()}
            destinations[_text(properties.get(PATH, _NOBODY))] += 1
            whose = backlog.primary.stranger_in(queue.name, properties)
            if whose is not None:
                strangers[whose or _UNMARKED] += 1
        if messages and messages[0].enqueued_time_utc is not None:
            now_s = SystemClock().now().utc_ms / 1_000
            oldest_s = max(0.0, now_s - messages[0].enqueued_time_utc.timestamp())
    return QueueStatus(
        queue=queue.name,
        active=queue.active,
        dead_letter=queue.dead_letter,
        oldest_s=oldest_s,
        destinations=dict(destinations.most_common()),
        strangers=dict(strangers.most_common()),
        sampled=destinations.total(),
    )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _print(primary: Namespace, secondary: Namespace, found: list[QueueStatus]) -> None:
    for side, half in (("primary", primary), ("secondary", secondary)):
        state = "reachable" if half.reachable else "not reachable"
        reason = f": {half.reason}" if half.reason else ""
        print(f"{side:<9}  {half.namespace}  {state}{reason}")
    if not found:
        return
    print()
    titles = ["BACKLOG QUEUE", "ACTIVE", "DEAD", "OLDEST", "FOR"]
    print_table(titles, [_row(status) for status in found], len(titles))
    active = sum(status.active for status in found)
    dead_letter = sum(status.dead_letter for status in found)
    print(f"\n{active:,} waiting, {dead_letter:,} in dead-letter queues")


def _row(status: QueueStatus) -> list[str]:
    paths = ", ".join(f"{_one_line(path)} ({n})" for path, n in status.destinations.items())
    if status.strangers:
        others = ", ".join(f"{_one_line(mark)} ({n})" for mark, n in status.strangers.items())
        paths += f"; not this primary's: {others}"
    if status.active > status.sampled > 0:
        paths += f" of the first {status.sampled}"
    return [
        status.queue,
        str(status.active),
        str(status.dead_letter),
        "" if status.oldest_s is None else span(status.oldest_s),
        paths,
    ]


def _one_line(path: str) -> str:
    """Anybody may have put it there: no message breaks out of its line."""
    return path if path.isprintable() and len(path) <= _PATH_CHARS_MAX else repr(path[:64])
