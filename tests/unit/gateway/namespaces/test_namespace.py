"""Addresses as clients write them."""

import pytest

from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.gateway.directory.addresses import parse_address


@pytest.mark.parametrize(
    ("text", "name", "subqueue", "is_management"),
    [
        ("orders", "orders", MAIN, False),
        ("/orders/", "orders", MAIN, False),
        ("amqps://localhost:5672/orders", "orders", MAIN, False),
        ("amqp://host/a/b/c", "a/b/c", MAIN, False),
        ("orders/$DeadLetterQueue", "orders", DEAD_LETTER, False),
        ("orders/$deadletterqueue", "orders", DEAD_LETTER, False),
        ("orders/$Transfer/$DeadLetterQueue", "orders", TRANSFER_DEAD_LETTER, False),
        ("orders/$management", "orders", MAIN, True),
        ("orders/$DeadLetterQueue/$management", "orders", DEAD_LETTER, True),
        ("$cbs", "$cbs", MAIN, False),
        ("news/Subscriptions/all", "news/Subscriptions/all", MAIN, False),
        ("news/subscriptions/all/$deadletterqueue", "news/subscriptions/all", DEAD_LETTER, False),
        (
            "amqps://h/news/Subscriptions/all/$Transfer/$DeadLetterQueue",
            "news/Subscriptions/all",
            TRANSFER_DEAD_LETTER,
            False,
        ),
        ("news/Subscriptions/all/$management", "news/Subscriptions/all", MAIN, True),
    ],
)
def test_addresses(text: str, name: str, subqueue: int, is_management: bool) -> None:
    address = parse_address(text)
    assert address.name == name
    assert address.subqueue == subqueue
    assert address.is_management == is_management


def test_the_path_is_what_a_token_must_cover() -> None:
    address = parse_address("amqps://h/orders/$DeadLetterQueue/$management")
    assert address.path == "orders/$DeadLetterQueue"
