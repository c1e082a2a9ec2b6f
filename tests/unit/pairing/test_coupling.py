"""Two clients that end together, or are made to."""

import pytest

from twinbus.pairing.coupling import Coupling, Side

pytestmark = pytest.mark.proves("P-17")


@pytest.mark.parametrize(
    ("first", "partner"), [(Side.PRIMARY, Side.SECONDARY), (Side.SECONDARY, Side.PRIMARY)]
)
def test_the_partner_is_faulted_after_five_seconds(first: Side, partner: Side) -> None:
    coupling = Coupling()
    assert coupling.next_deadline() is None
    assert coupling.due(1000.0) is None
    coupling.closed(first, 10.0)
    assert coupling.next_deadline() == 15.0
    assert coupling.due(14.9) is None
    assert coupling.due(15.0) is partner
    assert coupling.due(16.0) is None, "once"
    assert coupling.next_deadline() is None
    assert coupling.reason == f"the {first.value} client has been closed"


def test_not_if_the_partner_ends_in_time() -> None:
    coupling = Coupling()
    coupling.faulted(Side.SECONDARY, ValueError("broken"), 10.0)
    coupling.closed(Side.PRIMARY, 14.0)
    assert coupling.next_deadline() is None
    assert coupling.due(100.0) is None
    assert coupling.reason == "the secondary client has faulted: broken"


def test_ending_twice_does_not_put_it_off() -> None:
    coupling = Coupling(grace_s=2.0)
    coupling.closed(Side.PRIMARY, 10.0)
    coupling.faulted(Side.PRIMARY, "again", 11.5)
    assert coupling.due(12.0) is Side.SECONDARY
    assert coupling.reason == "the primary client has been closed"
