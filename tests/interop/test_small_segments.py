"""The smallest log files (`--segment-size 8`): what cannot be written at once is refused.

With the official SDK and its default settings.  A message whose copies did not fit into one file
stopped every answer of the server.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusQuotaExceededError
from azure.servicebus.management import SqlRuleAction, TrueRuleFilter

from tests.interop.administration import connect
from twinbus.testing.server import ServerProcess

RULES = 12  # each makes a copy of its own
LARGE = bytes(1_000_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("small") / "data"
    with ServerProcess(data_dir, arguments=("--segment-size", "8")) as process:
        yield process
    assert "Traceback" not in process.log, process.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    """A topic with one subscription whose rules all act, and a queue for everybody else."""
    with connect(server) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "acts")
        for number in range(RULES):
            action = SqlRuleAction(f"SET copy = {number}")
            rule = f"rule-{number}"
            admin.create_rule("news", "acts", rule, filter=TrueRuleFilter(), action=action)
        admin.delete_rule("news", "acts", "$Default")
        admin.create_queue("others")
    with ServiceBusClient.from_connection_string(server.connection_string) as opened:
        yield opened


@pytest.mark.proves("S-2")
def test_more_copies_than_can_be_written_at_once(client: ServiceBusClient) -> None:
    with client.get_topic_sender("news") as sender:
        with pytest.raises(ServiceBusQuotaExceededError, match="can be written at once"):
            sender.send_messages(ServiceBusMessage(LARGE))
        assert take(client) == 0, "what was refused is nowhere"
        sender.send_messages(ServiceBusMessage(b"small"))
    assert take(client) == RULES
    with client.get_queue_sender("others") as sender:
        sender.send_messages(ServiceBusMessage(LARGE))


def test_what_was_scheduled_comes_in_pieces(client: ServiceBusClient) -> None:
    """Nobody is there any more to be told that it is too much."""
    due = datetime.now(UTC) + timedelta(seconds=1)
    with client.get_topic_sender("news") as sender:
        sender.schedule_messages(ServiceBusMessage(LARGE), due)
    assert take(client, RULES) == RULES


def take(client: ServiceBusClient, wanted: int = 0) -> int:
    """How many messages the subscription has; it is empty afterwards."""
    count = 0
    with client.get_subscription_receiver("news", "acts") as receiver:
        while messages := receiver.receive_messages(50, max_wait_time=20 if count < wanted else 1):
            for message in messages:
                receiver.complete_message(message)
            count += len(messages)
    return count
