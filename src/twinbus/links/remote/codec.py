"""Commands, replies and deliveries ⇄ tuples of plain builtins (operations.py).

Sends, settlements, their replies and deliveries come by the hundred thousand: one tuple for each
message, and just the bytes where a message is nothing else.  Descriptions go as the text that they
have in the log.  `context` stays where it is; in its place a command carries its number.

This module must never change a value on its way: what one end encodes, the other end has.
"""

from typing import Any, Final

from twinbus.entities import commands, selections
from twinbus.entities.descriptions import DESCRIPTIONS, QueueDescription
from twinbus.entities.message import Overlay
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.links.remote.messages import (
    decode_new_messages,
    decode_overlay,
    encode_new_messages,
    encode_overlay,
)
from twinbus.links.remote.operations import COMMAND_MIN, Operation

SEND: Final = COMMAND_MIN
SETTLE: Final = COMMAND_MIN + 1

# All other commands by their numbers: which fields they carry, in the order of their constructors.
_CHOSEN: Final = ("subqueue", "selection", "count")
_KINDS: Final[dict[int, tuple[type[commands.Command], tuple[str, ...]]]] = {
    102: (commands.RenewLocks, ("subqueue", "locks")),
    103: (commands.Peek, ("subqueue", "from_sequence_number", "count", "session_id")),
    104: (
        commands.ReceiveDeferred,
        ("subqueue", "sequence_numbers", "receive_mode", "session_id", "session_grant"),
    ),
    105: (commands.CancelScheduled, ("sequence_numbers",)),
    106: (commands.RenewSession, ("session_id", "grant")),
    107: (commands.GetSessionState, ("session_id", "grant")),
    108: (commands.SetSessionState, ("session_id", "grant", "state")),
    109: (commands.ListSessions, ("updated_since_ms", "skip", "top")),
    110: (commands.AddRule, ("description",)),
    111: (commands.ReplaceRule, ("description",)),
    112: (commands.RemoveRule, ("name",)),
    113: (commands.ListRules, ("skip", "top")),
    114: (commands.CreateEntities, ("entities",)),
    115: (commands.UpdateEntities, ("entity_ids", "description")),
    116: (commands.DeleteEntities, ("entity_ids",)),
    117: (commands.ListEntities, ()),
    118: (commands.GetRuntime, ("entity_ids",)),
    119: (selections.DeleteMessages, _CHOSEN),
    120: (selections.Browse, (*_CHOSEN, "maximum_bytes", "is_range")),
    121: (selections.Undefer, (*_CHOSEN, "sequence_numbers")),
    122: (selections.Resubmit, _CHOSEN),
    123: (selections.ListNumbers, _CHOSEN),
    124: (selections.SettleRanges, (*_CHOSEN, "bounds", "overlay")),
    125: (commands.ListPartitions, ("subqueue",)),
}
_CODES: Final = {kind: (code, names) for code, (kind, names) in _KINDS.items()}


def encode_command(store: int, number: int, command: commands.Command) -> Operation:
    """(operation, store, number, entity, ...)"""
    if isinstance(command, commands.Send):
        messages = encode_new_messages(command.messages)
        carrier = command.carrier
        if not carrier and not command.has_room:
            return (SEND, store, number, command.entity_id, messages)
        numbers, completed = command.carrier_numbers, command.carrier_completed
        return (SEND, store, number, command.entity_id, messages, carrier, numbers, completed)
    if isinstance(command, commands.Settle):
        overlay = None if command.overlay is None else encode_overlay(command.overlay)
        return (
            SETTLE,
            store,
            number,
            command.entity_id,
            command.subqueue,
            command.locks,
            command.outcome,
            overlay,
            command.delay_ms,
        )
    code, names = _CODES[type(command)]
    fields = [_encode_field(getattr(command, name)) for name in names]
    return (code, store, number, command.entity_id, *fields)


def decode_command(operation: Operation) -> commands.Command:
    """The command, with its number as context."""
    code: int = operation[0]
    if code == SEND:
        messages = decode_new_messages(operation[4])
        send = commands.Send(operation[3], messages, operation[2])
        if len(operation) > 5:
            send.carrier = operation[5]
            send.has_room = not send.carrier  # else there would be nothing to say
            send.carrier_numbers = operation[6]
            send.carrier_completed = operation[7]
        return send
    if code == SETTLE:
        overlay = None if operation[7] is None else decode_overlay(operation[7])
        settle = commands.Settle(
            operation[3], operation[4], operation[5], operation[6], overlay, operation[2]
        )
        settle.delay_ms = operation[8]
        return settle
    kind, names = _KINDS[code]
    make: Any = kind
    fields = [_decode_field(name, operation[4 + i]) for i, name in enumerate(names)]
    command: commands.Command = (
        make(*fields) if issubclass(kind, commands.StoreCommand) else make(operation[3], *fields)
    )
    command.context = operation[2]
    return command


# --- fields that are no plain builtins --------------------------------------------------------


def _encode_field(value: Any) -> object:
    if isinstance(value, selections.Selection):
        return _encode_selection(value)
    if isinstance(value, Overlay):
        return encode_overlay(value)
    if isinstance(value, RuleDescription):
        return value.to_json()
    if isinstance(value, QueueDescription):
        return encode_description(value)
    if isinstance(value, list) and value and isinstance(value[0], commands.NewEntity):
        return [_encode_new_entity(new) for new in value]
    return value


def _decode_field(name: str, value: Any) -> object:
    if name == "selection":
        return _decode_selection(value)
    if name == "overlay":
        return None if value is None else decode_overlay(value)
    if name == "description":  # a rule's is one text
        is_rule = isinstance(value, str)
        return RuleDescription.from_json(value) if is_rule else decode_description(value)
    if name == "entities":
        return [_decode_new_entity(*fields) for fields in value]
    return value


def encode_description(description: QueueDescription) -> tuple[str, str]:
    return (description.KIND, description.to_json())


def decode_description(fields: tuple[str, str]) -> QueueDescription:
    return DESCRIPTIONS[fields[0]].from_json(fields[1])


def _encode_new_entity(new: commands.NewEntity) -> Operation:
    rule = None if new.rule is None else new.rule.to_json()
    return (new.kind, new.name, encode_description(new.description), rule)


def _decode_new_entity(
    kind: str, name: str, description: tuple[str, str], rule: str | None
) -> commands.NewEntity:
    made = None if rule is None else RuleDescription.from_json(rule)
    return commands.NewEntity(kind, name, decode_description(description), made)


def _encode_selection(selection: selections.Selection) -> Operation:
    return (
        selection.from_sequence_number,
        selection.before_ms,
        selection.session_id,
        selection.states,
        selection.expression,
        selection.to_sequence_number,
    )


def _decode_selection(fields: Operation) -> selections.Selection:
    selection = selections.Selection()
    selection.from_sequence_number = fields[0]
    selection.before_ms = fields[1]
    selection.session_id = fields[2]
    selection.states = fields[3]
    selection.expression = fields[4]
    selection.to_sequence_number = fields[5]
    return selection
