"""Made-up commands, messages and results of every kind, and what they hold for comparing them."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from twinbus.entities.commands import (
    AddRule,
    CancelScheduled,
    Command,
    CreateEntities,
    DeleteEntities,
    GetRuntime,
    GetSessionState,
    ListEntities,
    ListPartitions,
    ListRules,
    ListSessions,
    NewEntity,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    RenewSession,
    ReplaceRule,
    Send,
    SetSessionState,
    Settle,
    UpdateEntities,
)
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay, ProducerKey
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    Selection,
    SettleRanges,
    Undefer,
)
from twinbus.errors import ServiceError

# How a class with slots shows its attributes, interpreted and compiled.
_ATTRIBUTES = ("member_descriptor", "getset_descriptor")


def attributes(kind: type) -> set[str]:
    """The names of what its instances hold."""
    return {
        name
        for name in dir(kind)
        if not name.startswith("__") and type(getattr(kind, name)).__name__ in _ATTRIBUTES
    }


def inside(value: object) -> object:
    """Everything that an object holds but a command's context, as plain values."""
    if isinstance(value, list | tuple):
        return [inside(each) for each in value]
    if isinstance(value, ServiceError):
        return (type(value), str(value))
    if not type(value).__module__.startswith("twinbus.") or isinstance(
        value, RuleDescription | QueueDescription
    ):
        return value
    names = attributes(type(value)) - {"context"}
    return (type(value), {name: inside(getattr(value, name)) for name in sorted(names)})


def all_kinds(base: type[Command] = Command) -> set[type[Command]]:
    """Every class of commands that has none below it."""
    below = base.__subclasses__()
    if not below:
        return {base}
    return set().union(*(all_kinds(each) for each in below))


numbers = st.integers(0, NEVER_MS)
small = st.integers(0, 5_000)
texts = st.text(max_size=20)
texts_or_none = st.none() | texts
locks = st.lists(st.tuples(numbers, numbers), max_size=4)

overlays = st.builds(
    Overlay,
    texts_or_none,
    texts_or_none,
    texts_or_none,
    st.none() | st.binary(max_size=20),
    small,
    numbers,
)


@st.composite
def new_messages(draw: st.DrawFn) -> NewMessage:
    message = NewMessage(draw(st.binary(max_size=50)))
    if draw(st.booleans()):
        message.time_to_live_ms = draw(numbers)
        message.scheduled_ms = draw(numbers)
        message.message_id = draw(texts_or_none)
        message.session_id = draw(texts_or_none)
        message.partition_key = draw(texts_or_none)
        message.overlay = draw(st.none() | overlays)
        message.producer_key = draw(
            st.none() | st.builds(ProducerKey, texts, numbers, st.booleans())
        )
    return message


@st.composite
def messages(draw: st.DrawFn) -> tuple[Message, bytes]:
    """As one is handed out: its body beside it."""
    body = draw(st.binary(max_size=50))
    message = Message(
        draw(numbers),
        None,
        len(body),
        draw(numbers),
        draw(numbers),
        draw(texts_or_none),
        draw(st.integers(0, 3)),
    )
    message.delivery_count = draw(small)
    message.grant = draw(numbers)
    message.locked_until_ms = draw(numbers)
    message.overlay = draw(st.none() | overlays)
    return message, body


descriptions: SearchStrategy[QueueDescription] = st.sampled_from(
    [
        QueueDescription(requires_session=True, user_metadata="mine"),
        TopicDescription(default_time_to_live_ms=60_000),
        SubscriptionDescription(max_delivery_count=3),
    ]
)
rules = st.sampled_from(
    [
        RuleDescription.from_mapping({"name": "dear", "expression": "price > 10"}),
        RuleDescription.from_mapping({"name": "red", "properties": {"colour": "red"}}),
    ]
)
new_entities = st.builds(
    NewEntity, st.sampled_from(["queue", "topic"]), texts, descriptions, st.none() | rules
)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    selection = Selection()
    selection.from_sequence_number = draw(numbers)
    selection.to_sequence_number = draw(numbers)
    selection.before_ms = draw(numbers)
    selection.session_id = draw(texts_or_none)
    selection.states = draw(st.lists(st.integers(0, 2), max_size=3))
    selection.expression = draw(texts)
    return selection


@st.composite
def sends(draw: st.DrawFn) -> Send:
    send = Send(draw(numbers), draw(st.lists(new_messages(), max_size=4)))
    if draw(st.booleans()):
        send.carrier = draw(st.text(min_size=1, max_size=9))
        send.carrier_numbers = draw(st.lists(numbers, max_size=4))
    return send


@st.composite
def settles(draw: st.DrawFn) -> Settle:
    outcome = draw(st.integers(0, 5))
    settle = Settle(draw(numbers), draw(small), draw(locks), outcome, draw(st.none() | overlays))
    settle.delay_ms = draw(numbers)
    return settle


@st.composite
def peeks(draw: st.DrawFn) -> Peek:
    peek = Peek(draw(numbers), draw(small), draw(numbers), draw(small))
    peek.session_id = draw(texts_or_none)
    return peek


@st.composite
def deferred(draw: st.DrawFn) -> ReceiveDeferred:
    receive = ReceiveDeferred(draw(numbers), draw(small), draw(st.lists(numbers)), draw(small))
    receive.session_id = draw(texts_or_none)
    receive.session_grant = draw(numbers)
    return receive


@st.composite
def undefers(draw: st.DrawFn) -> Undefer:
    undefer = Undefer(draw(numbers), draw(small), draw(selections()), draw(small))
    undefer.sequence_numbers = draw(st.lists(numbers))
    return undefer


@st.composite
def browses(draw: st.DrawFn) -> Browse:
    browse = Browse(draw(numbers), draw(small), draw(selections()), draw(small))
    browse.maximum_bytes = draw(numbers)
    browse.is_range = draw(st.booleans())
    return browse


@st.composite
def range_settles(draw: st.DrawFn) -> SettleRanges:
    settle = SettleRanges(draw(numbers), draw(small), draw(selections()), draw(small))
    settle.bounds = draw(st.lists(numbers))
    settle.overlay = draw(st.none() | overlays)
    return settle


COMMANDS: dict[type[Command], SearchStrategy[Command]] = {
    Send: sends(),
    Settle: settles(),
    RenewLocks: st.builds(RenewLocks, numbers, small, locks),
    Peek: peeks(),
    ReceiveDeferred: deferred(),
    CancelScheduled: st.builds(CancelScheduled, numbers, st.lists(numbers)),
    RenewSession: st.builds(RenewSession, numbers, texts, numbers),
    GetSessionState: st.builds(GetSessionState, numbers, texts, numbers),
    SetSessionState: st.builds(SetSessionState, numbers, texts, numbers, st.none() | st.binary()),
    ListSessions: st.builds(ListSessions, numbers, numbers, small, small),
    AddRule: st.builds(AddRule, numbers, rules),
    ReplaceRule: st.builds(ReplaceRule, numbers, rules),
    RemoveRule: st.builds(RemoveRule, numbers, texts),
    ListRules: st.builds(ListRules, numbers, small, small),
    CreateEntities: st.builds(CreateEntities, st.lists(new_entities, max_size=3)),
    UpdateEntities: st.builds(UpdateEntities, st.lists(numbers), descriptions),
    DeleteEntities: st.builds(DeleteEntities, st.lists(numbers)),
    ListEntities: st.builds(ListEntities),
    GetRuntime: st.builds(GetRuntime, st.lists(numbers)),
    DeleteMessages: st.builds(DeleteMessages, numbers, small, selections(), small),
    Browse: browses(),
    ListNumbers: st.builds(ListNumbers, numbers, small, selections(), small),
    ListPartitions: st.builds(ListPartitions, numbers, small),
    SettleRanges: range_settles(),
    Undefer: undefers(),
    Resubmit: st.builds(Resubmit, numbers, small, selections(), small),
}
