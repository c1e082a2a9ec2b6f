"""One store in a broker process, between its broker and the socket."""

from tests.unit.broker.harness import BrokerHarness
from twinbus.broker.remote.store_session import StoreSession
from twinbus.entities.commands import RECEIVE_AND_DELETE
from twinbus.entities.facts import MAIN
from twinbus.links.remote.operations import CREDIT, DELIVERIES, OPEN_RECEIVER, Operation


def test_more_credit_while_messages_are_being_removed() -> None:
    """What is on its way counts once against the limit, or the last ones would never come."""
    harness = BrokerHarness()
    queue = harness.create_queue()
    harness.send(queue, *[b"%d" % index for index in range(10)])
    harness.run()
    said: list[Operation] = []
    store = StoreSession(0, said.append, lambda: False, harness.clock)
    store.run_by(harness.broker)
    fields = (queue.entity_id, MAIN, RECEIVE_AND_DELETE, None, True, False, 4, 0)
    store.handle((OPEN_RECEIVER, 0, 1, *fields))
    commit = harness.turn()
    assert commit is not None, "four are being removed"
    store.handle((CREDIT, 0, 1, 10, 0))
    harness.write(commit)
    harness.run()
    assert sum(len(each[4]) for each in said if each[0] == DELIVERIES) == 10
