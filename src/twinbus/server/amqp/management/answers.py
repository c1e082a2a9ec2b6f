"""Answers to $management requests: a status, and what a command came to as a map."""

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.entities import commands, selections
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.message.lock_tokens import lock_token
from twinbus.message.outgoing import encode_overlaid, encode_without_body
from twinbus.message.plain import DecodedMessage
from twinbus.server.amqp.management.entity import ManagedEntity
from twinbus.server.amqp.management.fields import Body, by_name
from twinbus.server.amqp.management.requests import omits_body
from twinbus.server.amqp.management.rules import answer_rules


def properties_of(status: int, body: Body) -> Body:
    """The application properties of an answer that is no refusal."""
    return {"statusCode": Int(status), "statusDescription": "OK" if body else "No content"}


def answer(
    managed: ManagedEntity, reply: commands.Reply, request: DecodedMessage
) -> tuple[int, Body]:
    """The status and the body that say how a command went."""
    command, result = reply.command, reply.result
    if isinstance(command, commands.Peek | commands.ReceiveDeferred):
        delivered: list[commands.Delivered] = result  # type: ignore[assignment]
        if not delivered:
            return 204, {}
        is_peek = isinstance(command, commands.Peek)
        if is_peek and omits_body(by_name(request.body, "The body of the request")):
            heads = [encode_without_body(one.message, one.body) for one in delivered]
            return 200, {"messages": [{"message": head} for head in heads]}
        return 200, {"messages": [_message_entry(one) for one in delivered]}
    if isinstance(command, commands.RenewLocks):
        expirations: list[int] = result  # type: ignore[assignment]
        return 200, {"expirations": Array([Timestamp(ms) for ms in expirations])}
    if isinstance(command, commands.RenewSession):
        until_ms: int = result  # type: ignore[assignment]
        return 200, {"expiration": Timestamp(until_ms)}
    if isinstance(command, commands.GetSessionState):
        return 200, {"session-state": result}
    if isinstance(command, commands.ListSessions):
        ids: list[str] = result  # type: ignore[assignment]
        if not ids:
            return 204, {}
        return 200, {"skip": Int(command.skip + len(ids)), "sessions-ids": Array(ids)}
    if isinstance(command, commands.ListPartitions):
        states: list[commands.PartitionState] = result  # type: ignore[assignment]
        return _answer_partitions(managed.entity.description.created_utc_ms, states)
    if isinstance(command, commands.ListRules):
        rules: list[RuleDescription] = result  # type: ignore[assignment]
        return answer_rules(rules)
    if isinstance(command, selections.SelectionCommand):
        selected: selections.Selected = result  # type: ignore[assignment]
        status, body = answer_selected(selected)
        if selected.delivered:
            body["messages"] = [_message_entry(one) for one in selected.delivered]
        return status, body
    if isinstance(command, commands.Send):
        numbers: list[int] = result  # type: ignore[assignment]
        return 200, {"sequence-numbers": Array(numbers)}
    return 200, {}


def _message_entry(delivered: commands.Delivered) -> Body:
    message = delivered.message
    until_ms = delivered.locked_until_utc_ms
    if not until_ms:
        return {"message": encode_overlaid(message, delivered.body, 0)}
    token = lock_token(message.sequence_number, message.grant)
    encoded = encode_overlaid(message, delivered.body, until_ms, token.bytes)
    return {"message": encoded, "lock-token": token}


def answer_selected(selected: selections.Selected) -> tuple[int, Body]:
    """How many it were, and where to go on if it was not all."""
    if not selected.count:
        return 204, {}
    body: Body = {"message-count": Int(selected.count)}
    if selected.bounds:
        body["bounds"] = Array(selected.bounds)
    if selected.next_sequence_number:
        body["next-sequence-number"] = selected.next_sequence_number
    return 200, body


def _answer_partitions(created_ms: int, states: list[commands.PartitionState]) -> tuple[int, Body]:
    """How far each partition has come; `created_ms` tells an entity from one with its name."""
    entries: list[Body] = [
        {
            "partition": Int(state.partition),
            "is-up": state.is_up,
            "first-sequence-number": state.first,
            "next-sequence-number": state.next,
            "message-count": state.count,
        }
        for state in states
    ]
    return 200, {"created": Timestamp(created_ms), "partitions": entries}
