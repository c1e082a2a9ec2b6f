"""What a syphon does with each message, step by step."""

import datetime as dt
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from twinbus.pairing.core import PairSettings
from twinbus.pairing.errors import OtherNamespaceError
from twinbus.pairing.events import StrangersLeft, SyphonProgress, SyphonResting
from twinbus.pairing.rewriting import rewrite
from twinbus.pairing.rules import (
    DAMAGED,
    DESTINATION_NOT_FOUND,
    EXPIRED,
    NO_PATH,
    REFUSED,
    TOO_LARGE,
)
from twinbus.pairing.steps import (
    Abandon,
    AskNamespace,
    Complete,
    DeadLetter,
    Pause,
    Peek,
    Receive,
    SendRestored,
    Step,
)
from twinbus.pairing.syphon import Syphon

pytestmark = pytest.mark.proves("P-14")

QUEUE = "ns/x-servicebus-transfer/0"
NOW_UTC = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)


def waiting(
    number: int,
    path: str = "q",
    *,
    session_id: str | None = None,
    partition_key: str | None = None,
    key: str | None = None,
    ttl_ms: int | None = None,
    enqueued_utc: dt.datetime = NOW_UTC,
) -> ServiceBusReceivedMessage:
    """A message of the backlog with this sequence number, which is its body as well."""
    original = AmqpAnnotatedMessage(
        data_body=str(number),
        properties=AmqpMessageProperties(group_id=session_id),
        header=AmqpMessageHeader(time_to_live=ttl_ms),
        annotations={"x-opt-partition-key": partition_key} if partition_key else None,
    )
    return received(number, rewrite(original, path, key or f"p/{number}"), enqueued_utc)


def received(
    number: int, message: AmqpAnnotatedMessage, enqueued_utc: dt.datetime = NOW_UTC
) -> ServiceBusReceivedMessage:
    message.annotations = (message.annotations or {}) | {
        b"x-opt-sequence-number": number,
        b"x-opt-enqueued-time": int(enqueued_utc.timestamp() * 1000),
    }
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    return ServiceBusReceivedMessage.from_bytes(bytes(encode_payload(bytearray(), outgoing)))


class Shell:
    """Performs the steps of one syphon and lets a test say what becomes of them."""

    def __init__(self, settings: PairSettings | None = None, until_empty: bool = False) -> None:
        self.now = 0.0
        self.syphon = Syphon(
            settings or PairSettings(primary="one", secondary="two", primary_name="ns"),
            lambda: self.now,
            lambda: NOW_UTC + dt.timedelta(seconds=self.now),
        )
        self.flow = self.syphon.empty(QUEUE, until_empty)
        self.step: Step | None = next(self.flow)

    def answer(self, outcome: object = None) -> Step | None:
        try:
            if isinstance(outcome, Exception):
                self.step = self.flow.throw(outcome)
            else:
                self.step = self.flow.send(outcome)
        except StopIteration:
            self.step = None
        return self.step

    def receive(self, *messages: ServiceBusReceivedMessage) -> Step | None:
        assert isinstance(self.step, Receive), self.step
        return self.answer(list(messages))

    def send(self, path: str, *numbers: int) -> None:
        """The step is this send."""
        assert isinstance(self.step, SendRestored), self.step
        bodies = [int(b"".join(each.body)) for each in self.step.messages]
        assert (self.step.path, bodies) == (path, list(numbers))

    def sent(self, path: str, *numbers: int) -> None:
        """This send succeeds, and so does the completing after it."""
        self.send(path, *numbers)
        self.answer()
        self.completed(*numbers)

    def completed(self, *numbers: int) -> None:
        assert isinstance(self.step, Complete), self.step
        assert [each.sequence_number for each in self.step.messages] == list(numbers)
        self.answer([])

    def dead_lettered(self, number: int, reason: str, text: str = "") -> None:
        assert isinstance(self.step, DeadLetter), self.step
        assert (self.step.message.sequence_number, self.step.reason) == (number, reason)
        assert text in self.step.description
        self.answer()

    @property
    def namespaces(self) -> frozenset[str]:
        """Of the send that is under way."""
        assert isinstance(self.step, SendRestored), self.step
        return self.step.namespaces

    def is_polling(self) -> bool:
        return self.step == Receive(QUEUE, 100, 900.0)


@pytest.mark.proves("P-14")
def test_received_sent_completed() -> None:
    """In the order of the backlog, messages of one destination together."""
    shell = Shell()
    assert shell.is_polling()
    shell.receive(waiting(2), waiting(1), waiting(3, "other"), waiting(4))
    shell.sent("q", 1, 2, 4)
    shell.sent("other", 3)
    assert shell.is_polling()
    assert shell.syphon.take_events() == [SyphonProgress(QUEUE, 4, 0, 0, 4)]
    assert shell.syphon.take_events() == []
    assert (shell.syphon.moved, shell.syphon.held) == ({QUEUE: 4}, {QUEUE: 0})


@pytest.mark.proves("C-2")
def test_no_pause_between_polls() -> None:
    shell = Shell()
    for _ in range(3):
        shell.receive()
        assert shell.is_polling()


def test_until_empty() -> None:
    shell = Shell(until_empty=True)
    assert isinstance(shell.step, Receive)
    assert shell.step.wait_s < 60
    shell.receive(waiting(1))
    shell.sent("q", 1)
    assert shell.receive() is None


def test_what_is_held_is_not_gone() -> None:
    """A destination that is busy for a moment does not end a drain with messages left over."""
    shell = Shell(until_empty=True)
    shell.receive(waiting(1))
    shell.answer(ServiceBusServerBusyError(message="busy"))
    assert isinstance(shell.receive(), Receive)
    shell.now = 60.0
    shell.receive(waiting(1))
    shell.sent("q", 1)
    assert shell.receive() is None


def test_the_producer_key_goes_along() -> None:
    shell = Shell()
    shell.receive(waiting(1, key="producer/17"))
    assert isinstance(shell.step, SendRestored)
    [message] = shell.step.messages
    assert message.delivery_annotations == {"x-opt-twinbus-producer-key": "producer/17"}


@pytest.mark.proves("P-14")
def test_a_foreign_message_is_a_dead_letter() -> None:
    """And does not hold up the rest."""
    shell = Shell()
    foreign = received(1, AmqpAnnotatedMessage(data_body="?"))
    damaged = received(
        2,
        AmqpAnnotatedMessage(
            data_body="?", application_properties={"x-ms-path": "q", "x-ms-sessionid": 7}
        ),
    )
    shell.receive(foreign, damaged, waiting(3))
    shell.dead_lettered(1, NO_PATH)
    shell.dead_lettered(2, DAMAGED, "x-ms-sessionid must be a text")
    shell.sent("q", 3)
    assert shell.syphon.dead_lettered == {QUEUE: 2}
    assert shell.syphon.take_events() == [SyphonProgress(QUEUE, 1, 2, 0, 1)]


@pytest.mark.proves("P-19")
def test_messages_of_others_are_left() -> None:
    """Neither sent nor dead-lettered, whatever is wrong with them; and looked at from then on."""
    shell = Shell()
    path = {"x-ms-path": "q"}
    others = received(1, amqp(path | {"x-twinbus-primary": "other"}))
    damaged = received(2, amqp({"x-twinbus-primary": "other", "x-ms-sessionid": 7}))
    ours = received(3, amqp(path | {"x-twinbus-primary": "NS"}))
    shell.receive(others, damaged, ours)
    sent = shell.step
    assert isinstance(sent, SendRestored)
    [message] = sent.messages
    assert not message.application_properties, "the mark is taken off"
    shell.answer()
    shell.completed(3)
    assert shell.step == Peek(QUEUE, 1, 100, 60.0)
    assert shell.answer([others, damaged]) == Peek(QUEUE, 3, 100, 60.0)
    assert shell.answer([]) == Abandon(QUEUE, [others, damaged])
    assert shell.answer(MessageLockLostError(message="too late")) == Pause(1.0)
    events = shell.syphon.take_events()
    assert events == [SyphonProgress(QUEUE, 1, 0, 0, 1), StrangersLeft(QUEUE, "other", 2)]
    assert shell.syphon.counts == {QUEUE: (1, 0, 0, 2, {"other": 2})}
    shell.answer()
    shell.answer([others])
    assert shell.answer([]) == Pause(2.0)
    assert shell.syphon.take_events() == [], "reported once"
    shell.answer()
    shell.answer([others, waiting(4)])
    assert shell.is_polling(), "something of this primary's is there"


def of_namespace(number: int, namespace: str | None) -> ServiceBusReceivedMessage:
    original = AmqpAnnotatedMessage(data_body=str(number))
    return received(number, rewrite(original, "q", f"p/{number}", "ns", namespace))


@pytest.mark.proves("P-19")
def test_another_namespace_at_the_primarys_address() -> None:
    """What was sent to the one before is left; it comes home should that one be back."""
    settings = PairSettings(primary="ns.servicebus.windows.net", secondary="two")
    shell = Shell(settings)
    old, new, unknown = of_namespace(1, "old"), of_namespace(2, "new"), of_namespace(3, None)
    shell.receive(old, new, unknown)
    shell.send("q", 1, 2, 3)
    assert shell.namespaces == {"old", "new"}
    shell.answer(OtherNamespaceError("new"))
    assert shell.namespaces == {"new"}
    shell.sent("q", 2, 3)
    assert shell.step == Peek(QUEUE, 1, 100, 60.0)
    shell.answer([old])
    assert shell.answer([]) == Abandon(QUEUE, [old])
    assert shell.answer() == Pause(1.0)
    assert StrangersLeft(QUEUE, "ns#old", 1) in shell.syphon.take_events()
    assert shell.syphon.counts == {QUEUE: (2, 0, 0, 1, {"ns#old": 1})}
    for outcome in ("new", ServiceBusConnectionError(message="down")):
        assert shell.answer() == AskNamespace("q", 20.0)
        assert shell.answer(outcome) == Peek(QUEUE, 1, 100, 60.0)
        shell.answer([old])
        assert isinstance(shell.answer([]), Pause), "nothing is received, so nothing is locked"
    assert shell.syphon.take_events() == [], "reported once"
    assert shell.answer() == AskNamespace("q", 20.0)
    shell.answer("old")
    shell.answer([old])
    shell.receive(old)
    shell.sent("q", 1)


@pytest.mark.proves("P-19")
def test_a_given_name_needs_no_id() -> None:
    """Who gives it vouches for it."""
    shell = Shell()
    shell.receive(of_namespace(1, "old"), of_namespace(2, "new"))
    assert shell.namespaces == frozenset()
    shell.sent("q", 1, 2)


@pytest.mark.proves("P-19")
def test_an_old_queue_that_is_deleted() -> None:
    """Is nothing to wait for."""
    shell = Shell(PairSettings(primary="ns.example", secondary="two"))
    assert isinstance(shell.step, Peek)
    assert shell.answer(MessagingEntityNotFoundError(message="gone")) is None


def amqp(properties: dict[str, Any]) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body="?", application_properties=properties)


def test_a_message_that_nobody_has_thought_of() -> None:
    """Whatever restoring makes of it, those behind it go on."""
    strange = AmqpAnnotatedMessage(
        data_body="?",
        application_properties={
            "x-ms-path": "q",
            "mine": 1,
            "x-twinbus-types": '{"application_properties":{"mine":"' + "9" * 5000 + '*INT"}}',
        },
    )
    shell = Shell()
    shell.receive(received(1, strange), waiting(2))
    shell.dead_lettered(1, DAMAGED, "ValueError")
    shell.sent("q", 2)


def test_what_has_expired_is_a_dead_letter() -> None:
    settings = PairSettings(
        primary="one", secondary="two", primary_name="ns", restored_time_to_live="remaining"
    )
    shell = Shell(settings)
    earlier = NOW_UTC - dt.timedelta(seconds=10)
    shell.receive(
        waiting(1, ttl_ms=5_000, enqueued_utc=earlier),
        waiting(2, ttl_ms=15_000, enqueued_utc=earlier),
    )
    shell.dead_lettered(1, EXPIRED, "5 s ago")
    shell.sent("q", 2)


@pytest.mark.proves("P-14")
def test_a_destination_that_is_gone() -> None:
    """Found out by one send for all its messages."""
    shell = Shell()
    shell.receive(waiting(1, "gone"), waiting(2, "gone"), waiting(3))
    shell.send("gone", 1, 2)
    shell.answer(MessagingEntityNotFoundError(message="no such entity"))
    shell.dead_lettered(1, DESTINATION_NOT_FOUND, "gone: ")
    shell.dead_lettered(2, DESTINATION_NOT_FOUND, "no such entity")
    shell.sent("q", 3)


@pytest.mark.proves("P-14")
def test_too_large_is_found_by_halving() -> None:
    """One by one, never because of a neighbour."""
    shell = Shell()
    shell.receive(*(waiting(number) for number in range(1, 6)))
    too_large = MessageSizeExceededError(message="too large")
    shell.send("q", 1, 2, 3, 4, 5)
    shell.answer(too_large)
    shell.sent("q", 1, 2)
    shell.send("q", 3, 4, 5)
    shell.answer(too_large)
    shell.send("q", 3)
    shell.answer(too_large)
    shell.dead_lettered(3, TOO_LARGE)
    shell.sent("q", 4, 5)
    assert shell.is_polling()


@pytest.mark.parametrize("error", [ValueError("no value"), TypeError("no type")])
def test_what_the_sdk_cannot_send(error: Exception) -> None:
    shell = Shell()
    shell.receive(waiting(1))
    shell.send("q", 1)
    assert isinstance(shell.step, SendRestored)
    shell.step.messages[0].annotations = {"x-huge": 2**40}  # no 32-bit number
    shell.answer(error)
    shell.dead_lettered(1, DAMAGED, str(error))


def test_a_closed_sender_is_no_message_s_fault() -> None:
    """The SDK raises a ValueError then, as it does for messages that it cannot encode."""
    shell = Shell()
    shell.receive(waiting(1))
    shell.send("q", 1)
    shell.answer(ValueError("The handler has already been shutdown."))
    assert not isinstance(shell.step, DeadLetter)


def test_what_the_sdk_fails_to_encode_while_sending() -> None:
    """It wraps such an error into one that may as well be the network's."""
    shell = Shell()
    shell.receive(waiting(1), waiting(2))
    assert isinstance(shell.step, SendRestored)
    shell.step.messages[0].annotations = {"x-huge": 2**40}  # no 32-bit number
    wrapped = ServiceBusError("Handler failed", error=ValueError("no int"))
    shell.answer(wrapped)
    shell.send("q", 1)
    shell.answer(wrapped)
    shell.dead_lettered(1, DAMAGED)
    shell.sent("q", 2)


def test_an_unknown_error_is_not_the_message_s_fault() -> None:
    shell = Shell()
    shell.receive(waiting(1))
    shell.answer(ServiceBusError("Handler failed", error=KeyError("?")))
    assert shell.is_polling()
    assert shell.syphon.held == {QUEUE: 1}


def refusal() -> ServiceBusError:
    error = ServiceBusError("not allowed here")
    error._condition = "amqp:not-allowed"
    return error


def test_refused_by_the_destination() -> None:
    shell = Shell()
    shell.receive(waiting(1))
    shell.answer(refusal())
    shell.dead_lettered(1, REFUSED, "q: ")


def test_destinations_with_partitions_take_one_key_at_a_time() -> None:
    """They refuse mixed batches; that is learned once."""
    shell = Shell()
    messages = [
        waiting(1, session_id="a"),
        waiting(2, partition_key="b"),
        waiting(3, session_id="a"),
    ]
    shell.receive(*messages)
    shell.send("q", 1, 2, 3)
    shell.answer(refusal())
    shell.sent("q", 1, 3)
    shell.sent("q", 2)
    shell.receive(waiting(4, session_id="a"), waiting(5, session_id="b"))
    shell.sent("q", 4)
    shell.sent("q", 5)


def test_messages_without_a_key_go_by_producer_and_block() -> None:
    """Contract §3: a copy must lead to the same partition as the first one."""
    shell = Shell()
    shell.receive(
        waiting(1, key="p/1"),
        waiting(2, key="p/4096"),
        waiting(3, key="r/2"),
        waiting(4, key="p/4095"),
        waiting(5, session_id="s"),
    )
    shell.sent("q", 1, 4)
    shell.sent("q", 2)
    shell.sent("q", 3)
    shell.sent("q", 5)


@pytest.mark.proves("P-14")
@pytest.mark.parametrize(
    ("error", "rest_s"),
    [
        (ServiceBusConnectionError(message="down"), 1.0),
        (MessagingEntityDisabledError(message="disabled"), 1.0),
        (ServiceBusAuthenticationError(message="who?"), 1.0),
        (ClientAuthenticationError("no token"), 1.0),
        (ServiceBusError("x", error=ClientAuthenticationError("no token")), 1.0),
        (KeyError("nobody has thought of that"), 1.0),
        (ServiceBusServerBusyError(message="busy"), 10.0),
    ],
)
def test_a_destination_that_is_down_rests(error: Exception, rest_s: float) -> None:
    """Its messages stay locked, others go their way, and it is told."""
    shell = Shell()
    shell.receive(waiting(1), waiting(2, "other"), waiting(3))
    shell.send("q", 1, 3)
    shell.answer(error)
    shell.sent("other", 2)
    assert shell.is_polling()
    assert shell.syphon.take_events() == [
        SyphonResting("q", error, rest_s),
        SyphonProgress(QUEUE, 1, 0, 2, 1),
    ]
    shell.now = rest_s - 0.1
    shell.receive(waiting(4))
    assert shell.is_polling(), "it rests still"
    shell.now = rest_s
    shell.receive(waiting(5))
    shell.sent("q", 5)


def test_rests_grow_to_two_minutes_and_end_with_a_success() -> None:
    shell = Shell()
    rests = []
    for number in range(1, 10):
        shell.receive(waiting(number))
        shell.send("q", number)
        shell.answer(ServiceBusConnectionError(message="down"))
        [event] = shell.syphon.take_events()
        assert isinstance(event, SyphonResting)
        rests.append(event.rest_s)
        shell.now += event.rest_s
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0]
    shell.receive(waiting(10))
    shell.sent("q", 10)
    shell.receive(waiting(11))
    shell.answer(ServiceBusConnectionError(message="down"))
    assert SyphonResting in {type(event) for event in shell.syphon.take_events()}
    shell.now += 1.0
    shell.receive(waiting(12))
    shell.send("q", 12)


def test_it_pauses_when_it_meets_the_same_messages_again() -> None:
    shell = Shell()
    shell.receive(waiting(1))
    shell.answer(ServiceBusConnectionError(message="down"))
    shell.receive(waiting(2))
    assert shell.is_polling(), "there may be others behind it"
    shell.receive(waiting(1))
    assert shell.step == Pause(1.0)
    shell.now = 1.0
    shell.answer()
    shell.receive(waiting(1), waiting(2))
    shell.sent("q", 1, 2)


@pytest.mark.proves("P-14")
def test_nothing_of_a_session_overtakes_what_is_held() -> None:
    shell = Shell()
    shell.receive(waiting(1, session_id="s"))
    shell.answer(ServiceBusConnectionError(message="down"))
    shell.now = 5.0
    shell.receive(waiting(2, session_id="s"), waiting(3, session_id="t"))
    shell.sent("q", 3)
    assert shell.syphon.held == {QUEUE: 2}
    shell.now = 60.0
    shell.receive(waiting(1, session_id="s"))
    shell.sent("q", 1)
    shell.receive(waiting(4, session_id="s"))
    assert shell.is_polling(), "2 has not come again yet"
    shell.receive(waiting(2, session_id="s"), waiting(4, session_id="s"))
    shell.sent("q", 2, 4)
    assert shell.syphon.held == {QUEUE: 0}


@pytest.mark.proves("P-15")
def test_what_never_comes_again_is_not_waited_for() -> None:
    """Another syphon has taken it."""
    shell = Shell()
    shell.receive(waiting(1, session_id="s"))
    shell.answer(ServiceBusConnectionError(message="down"))
    shell.now = 200.0
    shell.receive(waiting(2, session_id="s"))
    shell.sent("q", 2)


def test_what_is_long_in_hand_is_left_to_come_again() -> None:
    """Its lock would end before it could be completed."""
    shell = Shell()
    shell.receive(waiting(1, "slow"), waiting(2))
    shell.send("slow", 1)
    shell.now = 41.0
    shell.answer()
    shell.completed(1)
    assert shell.is_polling()
    assert shell.syphon.held == {QUEUE: 1}
    shell.now = 61.0
    shell.receive(waiting(2))
    shell.sent("q", 2)


@pytest.mark.parametrize(
    "outcome", [[MessageLockLostError(message="lost")], ServiceBusConnectionError(message="down")]
)
def test_what_could_not_be_completed_is_not_sent_again(outcome: Any) -> None:
    shell = Shell()
    shell.receive(waiting(1))
    shell.send("q", 1)
    shell.answer()
    shell.answer(outcome)
    assert shell.is_polling()
    shell.receive(waiting(1))
    shell.completed(1)
    assert shell.syphon.moved == {QUEUE: 1}
    # A queue that was deleted and made again counts from 1 again.
    shell.receive(waiting(1, enqueued_utc=NOW_UTC + dt.timedelta(days=1)))
    shell.sent("q", 1)


def test_a_dead_letter_that_fails_comes_again() -> None:
    shell = Shell()
    shell.receive(waiting(1, "gone"))
    shell.answer(MessagingEntityNotFoundError(message="gone"))
    assert isinstance(shell.step, DeadLetter)
    shell.answer(MessageLockLostError(message="lost"))
    assert shell.is_polling()
    assert shell.syphon.dead_lettered == {QUEUE: 0}


def test_a_backlog_queue_that_gives_nothing() -> None:
    """Back-off from 1 s to 2 min, told each time; the first success ends it."""
    shell = Shell()
    rests = []
    for _ in range(9):
        step = shell.answer(ServiceBusConnectionError(message="down"))
        assert isinstance(step, Pause)
        [event] = shell.syphon.take_events()
        assert isinstance(event, SyphonResting)
        assert (event.path, event.rest_s) == (QUEUE, step.seconds)
        rests.append(step.seconds)
        shell.answer()
        assert shell.is_polling()
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0]
    shell.receive()
    assert shell.answer(OSError("cut")) == Pause(1.0)


def test_long_errors_become_short_descriptions() -> None:
    shell = Shell()
    shell.receive(waiting(1))
    shell.answer(MessagingEntityNotFoundError(message="x" * 10_000))
    assert isinstance(shell.step, DeadLetter)
    assert len(shell.step.description) == 1024
