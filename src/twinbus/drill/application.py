"""The application of the drill: threads on the official SDK that send through the pair and receive.

It does what any application would: one paired client, a sender for each thread, a message that a
send has raised for is sent again, a receiver that has lost its server is opened again.  What it
knows of its messages goes to the ledger.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from azure.core.exceptions import AzureError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)

from twinbus.clock import SystemClock, monotonic_s
from twinbus.drill.ledger import Arrived, Ledger, Legs, Sent
from twinbus.drill.plan import (
    BACKLOG_QUEUES,
    CARTS,
    ENTITIES,
    FAILOVER_INTERVAL_S,
    PING_INTERVAL_S,
    SEND_TIMEOUT_S,
    Entity,
    pause_s,
)
from twinbus.drill.stage import DrillFailed
from twinbus.pairing import (
    Event,
    PairedSender,
    PairedServiceBusClient,
    PairingStatus,
    SendAvailabilityPairedNamespaceOptions,
    State,
    pair_namespace,
)

_BODY: Final = "order " * 40
_RETRY_S: Final = 0.3
_REOPEN_S: Final = 0.5
_RECEIVE_COUNT: Final = 50
_RECEIVE_S: Final = 1
_PREFETCH: Final = 20
_RENEW_S: Final = 3.0  # a session's lock
_JOIN_S_MAX: Final = 20.0


class Application:
    """One process of an application: senders and receivers, until they are told to stop."""

    def __init__(self, primary: str, secondary: str, ledger: Ledger, rate: float) -> None:
        self._ledger = ledger
        self._rate = rate
        self._clock = SystemClock()
        self._is_over = threading.Event()  # for senders
        self._is_closed = threading.Event()  # for receivers
        self._senders: list[threading.Thread] = []
        self._receivers: list[threading.Thread] = []
        # The SDK's talk of broken connections: that is what the drill is about.
        logging.getLogger("azure").setLevel(logging.CRITICAL)
        logging.getLogger("twinbus.pairing").setLevel(logging.CRITICAL)
        options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
            secondary,
            BACKLOG_QUEUES,
            failover_interval=FAILOVER_INTERVAL_S,
            ping_primary_interval=PING_INTERVAL_S,
            send_timeout=SEND_TIMEOUT_S,
        )
        # Without retries of the SDK's own: the pair hears of the first error.
        client = ServiceBusClient.from_connection_string(primary, retry_total=0)
        try:
            self.pair: PairedServiceBusClient = pair_namespace(client, options)
        except AzureError as error:
            raise DrillFailed(f"the namespaces could not be paired: {error}") from error

    def on_event(self, callback: Callable[[Event], None]) -> None:
        self.pair.on_event(callback)

    def status(self) -> PairingStatus:
        return self.pair.status()

    @property
    def is_home(self) -> bool:
        """Whether every entity sends to the primary again."""
        return all(each.state is State.HEALTHY for each in self.status().entities.values())

    @property
    def through_backlog(self) -> int:
        return sum(each.sent_to_backlog for each in self.status().entities.values())

    def start(self) -> None:
        for entity in ENTITIES:
            for number in range(entity.senders):
                self._begin(self._senders, f"{entity.name}-{number}", self._send, entity, number)
            for place in entity.places:
                for session in range(entity.sessions):
                    name = f"{place}-{session}"
                    self._begin(self._receivers, name, self._receive_session, place, session)
                if not entity.sessions:
                    self._begin(self._receivers, place, self._receive, entity, place)

    def stop_sending(self) -> None:
        """Every message that is begun is sent to its end: nobody leaves with one in the hand."""
        self._is_over.set()

    @property
    def is_sending(self) -> bool:
        return any(thread.is_alive() for thread in self._senders)

    def close(self) -> None:
        self._is_over.set()
        self._is_closed.set()
        end_s = monotonic_s() + _JOIN_S_MAX
        for thread in (*self._senders, *self._receivers):
            thread.join(max(0.0, end_s - monotonic_s()))
        self.pair.close()

    def _begin(
        self, threads: list[threading.Thread], name: str, run: Callable[..., None], *given: object
    ) -> None:
        thread = threading.Thread(target=run, args=given, name=name, daemon=True)
        threads.append(thread)
        thread.start()

    # --- senders ----------------------------------------------------------------------------------

    def _send(self, entity: Entity, number: int) -> None:
        get = self.pair.get_topic_sender if entity.is_topic else self.pair.get_queue_sender
        every_s = pause_s(entity, self._rate)
        legs = Legs()
        count = 0
        due_s = monotonic_s()
        with get(entity.name) as sender:
            while not self._is_over.wait(max(0.0, due_s - monotonic_s())):
                # What was not sent while nothing could be sent is not made up for.
                due_s = max(due_s + every_s, monotonic_s() - every_s)
                count += 1
                self._send_one(sender, entity, f"{entity.name}-{number}-{count:06}", count, legs)

    def _send_one(
        self, sender: PairedSender, entity: Entity, name: str, count: int, legs: Legs
    ) -> None:
        body = f"{name} {_BODY}"
        session = f"cart-{count % entity.sessions}" if entity.sessions else None
        message = ServiceBusMessage(body, message_id=name, session_id=session)
        in_backlog = self._in_backlog(entity)
        while True:
            began_ms = self._clock.now().utc_ms
            try:
                # The same object again: its producer key tells the bus that it is the same message.
                sender.send_messages(message)
                break
            except Exception:  # noqa: BLE001 - whatever it was, the message is still ours
                self._ledger.refuse()
                if self._is_closed.wait(_RETRY_S):
                    return
        if session is not None:
            session = f"{session}, leg {legs.took(self._in_backlog(entity) > in_backlog)}"
        self._ledger.accept(Sent(name, entity.name, session, count, began_ms, _hash(body)))

    def _in_backlog(self, entity: Entity) -> int:
        """How many of an entity with one sender went there: so it is known which one did."""
        return self.status().entities[entity.name].sent_to_backlog if entity.sessions else 0

    # --- receivers --------------------------------------------------------------------------------

    def _receive(self, entity: Entity, place: str) -> None:
        if entity.is_topic:
            subscription = place.rpartition("/")[2]
            make = partial(
                self.pair.get_subscription_receiver,
                entity.name,
                subscription,
                prefetch_count=_PREFETCH,
            )
        else:
            make = partial(self.pair.get_queue_receiver, place, prefetch_count=_PREFETCH)
        self._keep_receiving(make, place)

    def _receive_session(self, place: str, session: int) -> None:
        session_id = f"cart-{session}"
        self._keep_receiving(
            partial(
                self.pair.get_queue_receiver, place, session_id=session_id, prefetch_count=_PREFETCH
            ),
            place,
        )

    def _keep_receiving(self, make: Callable[[], ServiceBusReceiver], place: str) -> None:
        while not self._is_closed.is_set():
            try:
                with make() as receiver:
                    self._receive_from(receiver, place)
            except Exception:  # noqa: BLE001 - the server is away; it will be back
                self._is_closed.wait(_REOPEN_S)

    def _receive_from(self, receiver: ServiceBusReceiver, place: str) -> None:
        renew_s = monotonic_s() + _RENEW_S
        while not self._is_closed.is_set():
            if place == CARTS.name and monotonic_s() >= renew_s:
                receiver.session.renew_lock()
                renew_s = monotonic_s() + _RENEW_S
            found = receiver.receive_messages(_RECEIVE_COUNT, max_wait_time=_RECEIVE_S)
            for message in found:
                self._note(message, place)
                receiver.complete_message(message)

    def _note(self, message: ServiceBusReceivedMessage, place: str) -> None:
        assert message.sequence_number is not None
        now_ms = self._clock.now().utc_ms
        name, session = str(message.message_id), message.session_id
        number, body = message.sequence_number, str(message)
        self._ledger.receive(Arrived(name, place, session, number, now_ms, _hash(body)))


def _hash(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
