"""Reading the map of a $management request: a wrong type is refused, never guessed at."""

from uuid import UUID

from twinbus.entities.commands import Lock
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange
from twinbus.limits import DEAD_LETTER_TEXT_CHARS_MAX, SEQUENCE_NUMBERS_MAX
from twinbus.message.lock_tokens import parse_lock_token

Body = dict[str, object]


def by_name(value: object, what: str) -> Body:
    """A map by the names in it, be they strings or symbols."""
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"{what} is not a map.")
    return {str(key): each for key, each in value.items()}


def whole(body: Body, key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentInvalid(f"'{key}' must be a whole number.")
    return int(value)


def optional_whole(body: Body, key: str, default: int) -> int:
    return default if body.get(key) is None else whole(body, key)


def counted(body: Body, key: str, default: int, most: int) -> int:
    """A number of messages, at least one."""
    count = optional_whole(body, key, default)
    if not 1 <= count <= most:
        raise ArgumentOutOfRange(f"'{key}' is 1 to {most}, not {count}.")
    return count


def optional_text(body: Body, key: str) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentInvalid(f"'{key}' must be a string.")
    return str(value)


def flag(body: Body, key: str) -> bool:
    """False if it is not there."""
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise ArgumentInvalid(f"'{key}' must be a boolean.")
    return bool(value)


def dead_letter_text(body: Body, key: str) -> str | None:
    value = optional_text(body, key)
    return None if value is None else value[:DEAD_LETTER_TEXT_CHARS_MAX]


def required_text(body: Body, key: str) -> str:
    value = optional_text(body, key)
    if value is None:
        raise ArgumentInvalid(f"'{key}' is missing.")
    return value


def elements(body: Body, key: str, most: int = SEQUENCE_NUMBERS_MAX) -> list[object]:
    """A list or array with something in it, and not with more than `most`."""
    value = body.get(key)
    if not isinstance(value, list) or not value:
        raise ArgumentInvalid(f"'{key}' must be an array with at least one element.")
    if len(value) > most:
        raise ArgumentOutOfRange(f"'{key}' has more than {most} elements.")
    return value


def sequence_numbers(body: Body) -> list[int]:
    return _whole_numbers("sequence-numbers", elements(body, "sequence-numbers"))


def ranges(body: Body, key: str, most: int) -> list[int]:
    """First, end, first, end, … in ascending order; an end is not in its range."""
    bounds = _whole_numbers(key, elements(body, key, 2 * most))
    if len(bounds) % 2:
        raise ArgumentInvalid(f"'{key}' must hold pairs: the first number of a range and its end.")
    if bounds[0] < 0:
        raise ArgumentOutOfRange(f"'{key}' must not hold negative numbers.")
    for at in range(1, len(bounds)):
        if bounds[at] < bounds[at - 1] or (at % 2 and bounds[at] == bounds[at - 1]):
            raise ArgumentInvalid(f"'{key}' must ascend: each range ends behind its first number.")
    return bounds


def _whole_numbers(key: str, values: list[object]) -> list[int]:
    numbers: list[int] = []
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentInvalid(f"'{key}' must hold whole numbers.")
        numbers.append(int(value))
    return numbers


def lock_tokens(body: Body) -> list[Lock]:
    locks: list[Lock] = []
    for value in elements(body, "lock-tokens"):
        if not isinstance(value, UUID):
            raise ArgumentInvalid("'lock-tokens' must hold uuids.")
        locks.append(parse_lock_token(value))
    return locks
