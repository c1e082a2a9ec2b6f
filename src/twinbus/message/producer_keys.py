"""Producer keys: the number that a producer gives a message, to be known again by (P-13)."""

from typing import Final

from twinbus.entities.message import ProducerKey
from twinbus.errors import ArgumentInvalid
from twinbus.limits import PRODUCER_KEY_CHARS_MAX

NUMBER_DIGITS_MAX: Final = 18  # more would not fit into 63 bits


def read_producer_key(key: object) -> ProducerKey:
    """What the annotation says; ArgumentInvalid if that is no key."""
    if not isinstance(key, str):
        raise ArgumentInvalid("The producer key must be a text: '<producer>/<number>'.")
    if len(key) > PRODUCER_KEY_CHARS_MAX:
        raise ArgumentInvalid(
            f"The producer key has {len(key)} characters; {PRODUCER_KEY_CHARS_MAX} are allowed."
        )
    slash = key.rfind("/")
    digits = key[slash + 1 :]
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= NUMBER_DIGITS_MAX
    number = int(digits) if is_number else 0
    if slash <= 0 or number == 0:
        raise ArgumentInvalid(
            f"The producer key '{key[:64]}' is not of the form '<producer>/<number>' with a "
            "number from 1 on."
        )
    return ProducerKey(key[:slash], number)
