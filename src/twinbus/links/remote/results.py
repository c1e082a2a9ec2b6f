"""What a reply says ⇄ plain builtins: a form, and a value in that form.

Numbers, texts, bytes, lists of these and None are what they are.  An error goes by the name of its
class and its text.
"""

from typing import Any, Final

from twinbus.entities.commands import Delivered, Listed, PartitionState, Reply, Runtime
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.selections import Selected
from twinbus.errors import ServiceError
from twinbus.links.remote.codec import decode_description, encode_description
from twinbus.links.remote.messages import decode_message, encode_message
from twinbus.links.remote.operations import Operation

PLAIN: Final = 0
ERROR: Final = 1
ERRORS: Final = 2  # of single messages; None where there is none
DELIVERED: Final = 3
SELECTED: Final = 4
RUNTIMES: Final = 5
LISTED: Final = 6
RULES: Final = 7
PARTITIONS: Final = 8


def _error_classes(base: type[ServiceError]) -> dict[str, type[ServiceError]]:
    found = {base.__name__: base}
    for each in base.__subclasses__():
        found.update(_error_classes(each))
    return found


_ERRORS: Final = _error_classes(ServiceError)


def encode_error(error: ServiceError) -> tuple[str, str]:
    return (type(error).__name__, str(error))


def decode_error(fields: tuple[str, str]) -> ServiceError:
    """The error; of a class that is not known here, a ServiceError."""
    return _ERRORS.get(fields[0], ServiceError)(fields[1])


def _encode_error_or_none(error: ServiceError | None) -> tuple[str, str] | None:
    return None if error is None else encode_error(error)


def _decode_error_or_none(fields: tuple[str, str] | None) -> ServiceError | None:
    return None if fields is None else decode_error(fields)


def encode_reply(reply: Reply) -> tuple[int, Any]:
    """Form and value."""
    if reply.error is not None:
        return (ERROR, encode_error(reply.error))
    result = reply.result
    if isinstance(result, list):
        for each in result:
            if each is not None:
                return _encode_list(result, each)
        return (PLAIN, result)
    if isinstance(result, Selected):
        delivered = encode_delivered(result.delivered)
        numbers = (result.count, result.units, result.next_sequence_number, result.bounds)
        return (SELECTED, (*numbers, delivered))
    return (PLAIN, result)


def _encode_list(values: list[Any], sample: object) -> tuple[int, Any]:
    """A list is of one kind throughout; `sample` is the first of it."""
    if isinstance(sample, int):
        return (PLAIN, values)
    if isinstance(sample, Delivered):
        return (DELIVERED, encode_delivered(values))
    if isinstance(sample, ServiceError):
        return (ERRORS, [_encode_error_or_none(each) for each in values])
    if isinstance(sample, Runtime):
        return (RUNTIMES, [None if each is None else _encode_runtime(each) for each in values])
    if isinstance(sample, Listed):
        return (LISTED, encode_listed(values))
    if isinstance(sample, RuleDescription):
        return (RULES, [each.to_json() for each in values])
    if isinstance(sample, PartitionState):
        return (PARTITIONS, [(s.partition, s.is_up, s.first, s.next, s.count) for s in values])
    return (PLAIN, values)


def decode_result(form: int, value: Any) -> object:
    """What `encode_reply` was given, for every form but ERROR."""
    if form == PLAIN:
        return value
    if form == DELIVERED:
        return decode_delivered(value)
    if form == ERRORS:
        return [_decode_error_or_none(each) for each in value]
    if form == RUNTIMES:
        return [None if each is None else _decode_runtime(each) for each in value]
    if form == LISTED:
        return decode_listed(value)
    if form == RULES:
        return [RuleDescription.from_json(each) for each in value]
    if form == PARTITIONS:
        return [PartitionState(*fields) for fields in value]
    assert form == SELECTED, "a form that nobody encodes"
    selected = Selected()
    selected.count = value[0]
    selected.units = value[1]
    selected.next_sequence_number = value[2]
    selected.bounds = value[3]
    selected.delivered = decode_delivered(value[4])
    return selected


def encode_delivered(delivered: list[Delivered]) -> list[Operation]:
    return [
        (each.locked_until_utc_ms, encode_message(each.message, each.body)) for each in delivered
    ]


def decode_delivered(entries: list[Any]) -> list[Delivered]:
    return [Delivered(decode_message(fields), fields[0], until) for until, fields in entries]


def encode_listed(entities: list[Listed]) -> list[Operation]:
    return [
        (each.entity_id, each.kind, each.name, encode_description(each.description))
        for each in entities
    ]


def decode_listed(entries: list[Any]) -> list[Listed]:
    return [
        Listed(entity_id, kind, name, decode_description(description))
        for entity_id, kind, name, description in entries
    ]


_RUNTIME: Final = (
    "active",
    "deferred",
    "scheduled",
    "dead_letter",
    "transfer_dead_letter",
    "size_bytes",
    "accessed_utc_ms",
    "is_busy",
    "last_sequence_number",
    "sql_filter_count",
    "correlation_filter_count",
    "rule_count",
)


def _encode_runtime(runtime: Runtime) -> Operation:
    return tuple([getattr(runtime, name) for name in _RUNTIME])


def _decode_runtime(fields: Operation) -> Runtime:
    runtime = Runtime()
    for name, value in zip(_RUNTIME, fields, strict=True):
        setattr(runtime, name, value)
    return runtime
