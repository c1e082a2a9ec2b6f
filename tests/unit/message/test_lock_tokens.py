"""Lock tokens: one lock, three spellings."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import MessageLockLost
from twinbus.message.lock_tokens import delivery_tag, lock_token, parse_lock_token

numbers = st.integers(min_value=1, max_value=2**63 - 1)


@given(sequence_number=numbers, grant=numbers)
def test_a_token_stands_for_its_lock(sequence_number: int, grant: int) -> None:
    token = lock_token(sequence_number, grant)
    assert parse_lock_token(token) == (sequence_number, grant)


@given(sequence_number=numbers, grant=numbers)
def test_the_delivery_tag_is_the_guid_in_dotnet_order(sequence_number: int, grant: int) -> None:
    tag = delivery_tag(sequence_number, grant)
    assert len(tag) == 16
    assert UUID(bytes_le=tag) == lock_token(sequence_number, grant)  # as the SDK reads it


def test_a_token_from_elsewhere_is_a_lost_lock() -> None:
    with pytest.raises(MessageLockLost):
        parse_lock_token(UUID(int=0))


@given(st.uuids())
def test_any_uuid_is_a_lock_or_lost(token: UUID) -> None:
    try:
        sequence_number, grant = parse_lock_token(token)
    except MessageLockLost:
        return
    assert lock_token(sequence_number, grant) == token
