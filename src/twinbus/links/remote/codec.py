"""Commands, replies and deliveries ⇄ tuples of plain builtins (operations.py).

Sends, settlements, their replies and deliveries come by the hundred thousand: one tuple for each
message, and just the bytes where a message is nothing else.  Descriptions go as the text that they
have in the log.  `context` stays where it is; in its place a command carries its number.

This module must never change a value on its way: what one end encodes, the other end has.
"""

from collections.abc import Callable
from typing import Any, Final

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
from twinbus.entities.descriptions import DESCRIPTIONS, QueueDescription
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    Selection,
    SelectionCommand,
    SettleRanges,
    Undefer,
)
from twinbus.links.remote.messages import (
    decode_new_messages,
    decode_overlay,
    encode_new_messages,
    encode_overlay,
)
from twinbus.links.remote.operations import COMMAND_MIN, Operation

SEND: Final = COMMAND_MIN
SETTLE: Final = COMMAND_MIN + 1
RENEW_LOCKS: Final = COMMAND_MIN + 2
PEEK: Final = COMMAND_MIN + 3
RECEIVE_DEFERRED: Final = COMMAND_MIN + 4
CANCEL_SCHEDULED: Final = COMMAND_MIN + 5
RENEW_SESSION: Final = COMMAND_MIN + 6
GET_SESSION_STATE: Final = COMMAND_MIN + 7
SET_SESSION_STATE: Final = COMMAND_MIN + 8
LIST_SESSIONS: Final = COMMAND_MIN + 9
ADD_RULE: Final = COMMAND_MIN + 10
REPLACE_RULE: Final = COMMAND_MIN + 11
REMOVE_RULE: Final = COMMAND_MIN + 12
LIST_RULES: Final = COMMAND_MIN + 13
CREATE_ENTITIES: Final = COMMAND_MIN + 14
UPDATE_ENTITIES: Final = COMMAND_MIN + 15
DELETE_ENTITIES: Final = COMMAND_MIN + 16
LIST_ENTITIES: Final = COMMAND_MIN + 17
GET_RUNTIME: Final = COMMAND_MIN + 18
DELETE_MESSAGES: Final = COMMAND_MIN + 19
BROWSE: Final = COMMAND_MIN + 20
UNDEFER: Final = COMMAND_MIN + 21
RESUBMIT: Final = COMMAND_MIN + 22
LIST_NUMBERS: Final = COMMAND_MIN + 23
SETTLE_RANGES: Final = COMMAND_MIN + 24
LIST_PARTITIONS: Final = COMMAND_MIN + 25

Encode = Callable[[Any], Operation]
Decode = Callable[[Operation], Command]


def encode_command(store: int, number: int, command: Command) -> Operation:
    """(operation, store, number, entity, ...)"""
    if isinstance(command, Send):
        messages = encode_new_messages(command.messages)
        carrier = command.carrier
        if not carrier:
            return (SEND, store, number, command.entity_id, messages)
        numbers, completed = command.carrier_numbers, command.carrier_completed
        return (SEND, store, number, command.entity_id, messages, carrier, numbers, completed)
    if isinstance(command, Settle):
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
    code, encode = _ENCODERS[type(command)]
    return (code, store, number, command.entity_id, *encode(command))


def decode_command(operation: Operation) -> Command:
    """The command, with its number as context."""
    code: int = operation[0]
    if code == SEND:
        messages = decode_new_messages(operation[4])
        send = Send(operation[3], messages, operation[2])
        if len(operation) > 5:
            send.carrier = operation[5]
            send.carrier_numbers = operation[6]
            send.carrier_completed = operation[7]
        return send
    if code == SETTLE:
        overlay = None if operation[7] is None else decode_overlay(operation[7])
        settle = Settle(
            operation[3], operation[4], operation[5], operation[6], overlay, operation[2]
        )
        settle.delay_ms = operation[8]
        return settle
    command = _DECODERS[code](operation)
    command.context = operation[2]
    return command


# --- messages and sessions --------------------------------------------------------------------


def _encode_renew_locks(command: RenewLocks) -> Operation:
    return (command.subqueue, command.locks)


def _decode_renew_locks(fields: Operation) -> Command:
    return RenewLocks(fields[3], fields[4], fields[5])


def _encode_peek(command: Peek) -> Operation:
    return (command.subqueue, command.from_sequence_number, command.count, command.session_id)


def _decode_peek(fields: Operation) -> Command:
    peek = Peek(fields[3], fields[4], fields[5], fields[6])
    peek.session_id = fields[7]
    return peek


def _encode_receive_deferred(command: ReceiveDeferred) -> Operation:
    return (
        command.subqueue,
        command.sequence_numbers,
        command.receive_mode,
        command.session_id,
        command.session_grant,
    )


def _decode_receive_deferred(fields: Operation) -> Command:
    receive = ReceiveDeferred(fields[3], fields[4], fields[5], fields[6])
    receive.session_id = fields[7]
    receive.session_grant = fields[8]
    return receive


def _encode_cancel_scheduled(command: CancelScheduled) -> Operation:
    return (command.sequence_numbers,)


def _decode_cancel_scheduled(fields: Operation) -> Command:
    return CancelScheduled(fields[3], fields[4])


def _encode_session(command: RenewSession | GetSessionState) -> Operation:
    return (command.session_id, command.grant)


def _decode_renew_session(fields: Operation) -> Command:
    return RenewSession(fields[3], fields[4], fields[5])


def _decode_get_session_state(fields: Operation) -> Command:
    return GetSessionState(fields[3], fields[4], fields[5])


def _encode_set_session_state(command: SetSessionState) -> Operation:
    return (command.session_id, command.grant, command.state)


def _decode_set_session_state(fields: Operation) -> Command:
    return SetSessionState(fields[3], fields[4], fields[5], fields[6])


def _encode_list_sessions(command: ListSessions) -> Operation:
    return (command.updated_since_ms, command.skip, command.top)


def _decode_list_sessions(fields: Operation) -> Command:
    return ListSessions(fields[3], fields[4], fields[5], fields[6])


# --- rules and entities -----------------------------------------------------------------------


def encode_description(description: QueueDescription) -> tuple[str, str]:
    return (description.KIND, description.to_json())


def decode_description(fields: tuple[str, str]) -> QueueDescription:
    return DESCRIPTIONS[fields[0]].from_json(fields[1])


def _encode_rule(command: AddRule | ReplaceRule) -> Operation:
    return (command.description.to_json(),)


def _decode_add_rule(fields: Operation) -> Command:
    return AddRule(fields[3], RuleDescription.from_json(fields[4]))


def _decode_replace_rule(fields: Operation) -> Command:
    return ReplaceRule(fields[3], RuleDescription.from_json(fields[4]))


def _encode_remove_rule(command: RemoveRule) -> Operation:
    return (command.name,)


def _decode_remove_rule(fields: Operation) -> Command:
    return RemoveRule(fields[3], fields[4])


def _encode_list_rules(command: ListRules) -> Operation:
    return (command.skip, command.top)


def _decode_list_rules(fields: Operation) -> Command:
    return ListRules(fields[3], fields[4], fields[5])


def _encode_create_entities(command: CreateEntities) -> Operation:
    entities: list[Operation] = []
    for new in command.entities:
        rule = None if new.rule is None else new.rule.to_json()
        entities.append((new.kind, new.name, encode_description(new.description), rule))
    return (entities,)


def _decode_create_entities(fields: Operation) -> Command:
    entities: list[NewEntity] = []
    for kind, name, description, rule in fields[4]:
        made = None if rule is None else RuleDescription.from_json(rule)
        entities.append(NewEntity(kind, name, decode_description(description), made))
    return CreateEntities(entities)


def _encode_update_entities(command: UpdateEntities) -> Operation:
    return (command.entity_ids, encode_description(command.description))


def _decode_update_entities(fields: Operation) -> Command:
    return UpdateEntities(fields[4], decode_description(fields[5]))


def _encode_entity_ids(command: DeleteEntities | GetRuntime) -> Operation:
    return (command.entity_ids,)


def _decode_delete_entities(fields: Operation) -> Command:
    return DeleteEntities(fields[4])


def _decode_get_runtime(fields: Operation) -> Command:
    return GetRuntime(fields[4])


def _encode_list_entities(command: ListEntities) -> Operation:
    return ()


def _decode_list_entities(fields: Operation) -> Command:
    return ListEntities()


# --- many messages at once --------------------------------------------------------------------


def _encode_selection(command: SelectionCommand) -> Operation:
    selection = command.selection
    return (
        command.subqueue,
        (
            selection.from_sequence_number,
            selection.before_ms,
            selection.session_id,
            selection.states,
            selection.expression,
            selection.to_sequence_number,
        ),
        command.count,
    )


def _decode_selection(fields: Operation) -> Selection:
    selection = Selection()
    selection.from_sequence_number = fields[0]
    selection.before_ms = fields[1]
    selection.session_id = fields[2]
    selection.states = fields[3]
    selection.expression = fields[4]
    selection.to_sequence_number = fields[5]
    return selection


def _decode_delete_messages(fields: Operation) -> Command:
    return DeleteMessages(fields[3], fields[4], _decode_selection(fields[5]), fields[6])


def _encode_browse(command: Browse) -> Operation:
    return (*_encode_selection(command), command.maximum_bytes, command.is_range)


def _decode_browse(fields: Operation) -> Command:
    browse = Browse(fields[3], fields[4], _decode_selection(fields[5]), fields[6])
    browse.maximum_bytes = fields[7]
    browse.is_range = fields[8]
    return browse


def _decode_list_numbers(fields: Operation) -> Command:
    return ListNumbers(fields[3], fields[4], _decode_selection(fields[5]), fields[6])


def _encode_settle_ranges(command: SettleRanges) -> Operation:
    overlay = None if command.overlay is None else encode_overlay(command.overlay)
    return (*_encode_selection(command), command.bounds, overlay)


def _decode_settle_ranges(fields: Operation) -> Command:
    settle = SettleRanges(fields[3], fields[4], _decode_selection(fields[5]), fields[6])
    settle.bounds = fields[7]
    if fields[8] is not None:
        settle.overlay = decode_overlay(fields[8])
    return settle


def _encode_list_partitions(command: ListPartitions) -> Operation:
    return (command.subqueue,)


def _decode_list_partitions(fields: Operation) -> Command:
    return ListPartitions(fields[3], fields[4])


def _decode_resubmit(fields: Operation) -> Command:
    return Resubmit(fields[3], fields[4], _decode_selection(fields[5]), fields[6])


def _encode_undefer(command: Undefer) -> Operation:
    return (*_encode_selection(command), command.sequence_numbers)


def _decode_undefer(fields: Operation) -> Command:
    undefer = Undefer(fields[3], fields[4], _decode_selection(fields[5]), fields[6])
    undefer.sequence_numbers = fields[7]
    return undefer


# Sends and settlements have their place in the functions above.
_ENCODERS: Final[dict[type[Command], tuple[int, Encode]]] = {
    RenewLocks: (RENEW_LOCKS, _encode_renew_locks),
    Peek: (PEEK, _encode_peek),
    ReceiveDeferred: (RECEIVE_DEFERRED, _encode_receive_deferred),
    CancelScheduled: (CANCEL_SCHEDULED, _encode_cancel_scheduled),
    RenewSession: (RENEW_SESSION, _encode_session),
    GetSessionState: (GET_SESSION_STATE, _encode_session),
    SetSessionState: (SET_SESSION_STATE, _encode_set_session_state),
    ListSessions: (LIST_SESSIONS, _encode_list_sessions),
    AddRule: (ADD_RULE, _encode_rule),
    ReplaceRule: (REPLACE_RULE, _encode_rule),
    RemoveRule: (REMOVE_RULE, _encode_remove_rule),
    ListRules: (LIST_RULES, _encode_list_rules),
    CreateEntities: (CREATE_ENTITIES, _encode_create_entities),
    UpdateEntities: (UPDATE_ENTITIES, _encode_update_entities),
    DeleteEntities: (DELETE_ENTITIES, _encode_entity_ids),
    ListEntities: (LIST_ENTITIES, _encode_list_entities),
    GetRuntime: (GET_RUNTIME, _encode_entity_ids),
    DeleteMessages: (DELETE_MESSAGES, _encode_selection),
    Browse: (BROWSE, _encode_browse),
    Undefer: (UNDEFER, _encode_undefer),
    Resubmit: (RESUBMIT, _encode_selection),
    ListNumbers: (LIST_NUMBERS, _encode_selection),
    SettleRanges: (SETTLE_RANGES, _encode_settle_ranges),
    ListPartitions: (LIST_PARTITIONS, _encode_list_partitions),
}

_DECODERS: Final[dict[int, Decode]] = {
    RENEW_LOCKS: _decode_renew_locks,
    PEEK: _decode_peek,
    RECEIVE_DEFERRED: _decode_receive_deferred,
    CANCEL_SCHEDULED: _decode_cancel_scheduled,
    RENEW_SESSION: _decode_renew_session,
    GET_SESSION_STATE: _decode_get_session_state,
    SET_SESSION_STATE: _decode_set_session_state,
    LIST_SESSIONS: _decode_list_sessions,
    ADD_RULE: _decode_add_rule,
    REPLACE_RULE: _decode_replace_rule,
    REMOVE_RULE: _decode_remove_rule,
    LIST_RULES: _decode_list_rules,
    CREATE_ENTITIES: _decode_create_entities,
    UPDATE_ENTITIES: _decode_update_entities,
    DELETE_ENTITIES: _decode_delete_entities,
    LIST_ENTITIES: _decode_list_entities,
    GET_RUNTIME: _decode_get_runtime,
    DELETE_MESSAGES: _decode_delete_messages,
    BROWSE: _decode_browse,
    UNDEFER: _decode_undefer,
    RESUBMIT: _decode_resubmit,
    LIST_NUMBERS: _decode_list_numbers,
    SETTLE_RANGES: _decode_settle_ranges,
    LIST_PARTITIONS: _decode_list_partitions,
}
