"""A link to a store that creates spans for what passes through it: wraps any `StoreLink`.

    no traces    not used: the gateway's links are the stores' own
    traces       wraps every link; a message without a trace passes after one look at its bytes

It sees sends, deliveries and settlements of every protocol alike.  What happens inside a store
(a hop of forwarding, an expiry) is not seen.  Transactions pass without spans.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, cast

from opentelemetry.context import Context
from opentelemetry.trace import Span

from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    RELEASE,
    Asked,
    Command,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.descriptions import PREFIX_END
from twinbus.entities.message import Message
from twinbus.entities.partitions import shown_name
from twinbus.gateway.directory.directory import Directory, plain_id
from twinbus.links.sink import Sink
from twinbus.links.store_link import ReceiverDescription, Receiving, StoreLink
from twinbus.links.wrapper import LinkWrapper, SinkWrapper
from twinbus.telemetry.tracing import DELIVER, FORWARD, SETTLE, STORE, Tracing

DELIVERED_MAX: Final = 100_000  # messages whose settlement is waited for, the newest
_SUBQUEUES: Final = ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue")
_DISPOSITIONS: Final = {
    COMPLETE: "complete",
    ABANDON: "abandon",
    DEFER: "defer",
    DEAD_LETTER: "dead_letter",
    RELEASE: "release",
}
_DISPOSITION: Final = "messaging.servicebus.disposition_status"
_DELIVERY_COUNT: Final = "messaging.servicebus.message.delivery_count"
_ENQUEUED_TIME: Final = "messaging.servicebus.message.enqueued_time"  # UTC, in seconds
_NAMESPACE: Final = "twinbus.namespace"

ReadId = Callable[[bytes], str | None]
Delivered = tuple[Context, str | None]  # the deliver span's, and the message's id
Begun = tuple[int, Span]  # which message of a command, and its span


class TracedLink(LinkWrapper):
    """One store, with spans for those messages that carry a trace."""

    def __init__(
        self,
        link: StoreLink,
        store: int,
        tracing: Tracing,
        read_id: ReadId,
        namespace: str,
        directory: Callable[[], Directory],
    ) -> None:
        """`namespace` is the default one, whose names stand in the store as they are.

        The directory belongs to the gateway, which is made of links, and so comes later.
        """
        super().__init__(link, has_work=True)
        self._store = store
        self._tracing = tracing
        self._read_id = read_id
        self._namespace = namespace
        self._directory = directory
        self._delivered: OrderedDict[tuple[int, int], Delivered] = OrderedDict()

    # -- sends and settlements ---------------------------------------------------------------------

    def _submit(self, commands: list[Command]) -> None:
        for command in commands:
            spans: list[Begun] = []
            if isinstance(command, Send):
                spans = self._begin_store(command)
            elif isinstance(command, Settle) and self._delivered:
                spans = self._begin_settle(command)
            if spans:
                command.context = (Ending(self._tracing, spans, command.context), None)
        self._link.submit(commands)

    def _begin_store(self, command: Send) -> list[Begun]:
        spans = []
        for index, message in enumerate(command.messages):
            parent = self._tracing.parent_of(message.body)
            if parent is not None:
                place = self._place(command.entity_id)
                if place is None:
                    break  # the gateway's own: a journal
                more = {_NAMESPACE: place[0]}
                message_id = self._read_id(message.body)
                span = self._tracing.begin(STORE, place[1], message_id, parent, more)
                spans.append((index, span))
        return spans

    def _begin_settle(self, command: Settle) -> list[Begun]:
        spans = []
        for index, (number, _) in enumerate(command.locks):
            key = (command.entity_id, number)
            found = self._delivered.get(key)
            place = self._place(command.entity_id, command.subqueue)
            if found is None or place is None:
                continue
            if command.outcome != DEFER:  # a deferred message is settled once more
                del self._delivered[key]
            more = {_NAMESPACE: place[0], _DISPOSITION: _DISPOSITIONS[command.outcome]}
            span = self._tracing.begin(SETTLE, place[1], found[1], found[0], more)
            spans.append((index, span))
        return spans

    def _place(self, entity_id: int, subqueue: int = 0) -> tuple[str, str] | None:
        """Namespace and path of what this store knows by a number."""
        found = self._directory().part(plain_id(self._store, entity_id))
        if found is None:
            return None
        name = found[0].name
        prefix, end, _ = name.rpartition(PREFIX_END)
        return (prefix if end else self._namespace), shown_name(name) + _SUBQUEUES[subqueue]

    # -- deliveries --------------------------------------------------------------------------------

    def delivering(
        self,
        entity_id: int,
        subqueue: int,
        operation: str,
        messages: list[Message],
        bodies: list[bytes],
    ) -> None:
        """These go to a receiver."""
        for message, body in zip(messages, bodies, strict=True):
            parent = self._tracing.parent_of(body)
            place = self._place(entity_id, subqueue) if parent is not None else None
            if parent is None or place is None:
                continue
            message_id = self._read_id(body)
            more: dict[str, str | int] = {
                _NAMESPACE: place[0],
                _DELIVERY_COUNT: message.delivery_count + 1,
                _ENQUEUED_TIME: message.enqueued_ms // 1_000,
            }
            span = self._tracing.begin(operation, place[1], message_id, parent, more)
            self._delivered[entity_id, message.sequence_number] = (
                self._tracing.end(span),
                message_id,
            )
        while len(self._delivered) > DELIVERED_MAX:
            self._delivered.popitem(last=False)

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        operation = FORWARD if description.relays else DELIVER
        traced = TracedSink(self, sink, description.entity_id, description.subqueue, operation)
        return self._link.open_receiver(description, traced)


class TracedSink(SinkWrapper):
    """Hands on everything, and tells the link of messages."""

    __slots__ = ("_entity_id", "_link", "_operation", "_subqueue")

    def __init__(
        self, link: TracedLink, sink: Sink, entity_id: int, subqueue: int, operation: str
    ) -> None:
        super().__init__(sink)
        self._link = link
        self._entity_id = entity_id
        self._subqueue = subqueue
        self._operation = operation

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        self._link.delivering(self._entity_id, self._subqueue, self._operation, messages, bodies)
        self._sink.deliver(messages, bodies, locked_until_utc_ms)


class Ending:
    """Ends spans when a command is answered, and passes the answer on to the caller."""

    __slots__ = ("_context", "_spans", "_tracing")

    def __init__(self, tracing: Tracing, spans: list[Begun], context: object) -> None:
        self._tracing = tracing
        self._spans = spans
        self._context = context  # the command's own

    def replied(self, reply: Reply, rest: Any) -> None:
        result = reply.result
        # Where only some of the locks were good, each has its own answer.
        errors = result if isinstance(reply.command, Settle) and isinstance(result, list) else None
        for index, span in self._spans:
            self._tracing.end(span, reply.error if errors is None else errors[index])
        reply.command.context = self._context
        if self._context is not None:
            asked, remembered = cast(tuple[Asked, object], self._context)
            asked.replied(reply, remembered)
