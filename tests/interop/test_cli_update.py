"""`twinbus queue update`, and of topics and subscriptions: only what is named changes."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)

from tests.complaint import complaint
from tests.interop.administration import connect
from tests.interop.outage import run_server
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.main import main
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-9"), pytest.mark.feature("entity.queues", "entity.topics")]


KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="


@pytest.fixture
def admin(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceBusAdministrationClient]:
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)
    with connect(server) as client:
        yield client


def run(line: str) -> None:
    assert main(line.split()) == 0


def test_only_what_is_named_changes(
    admin: ServiceBusAdministrationClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything else stays, what the command line does not know of as well."""
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        rights=[AccessRights.SEND],
        primary_key=KEY,
        key_name="sending",
        claim_type="SharedAccessKey",
        claim_value="None",
    )
    admin.create_queue("dead")
    admin.create_queue(
        "orders",
        lock_duration=timedelta(seconds=20),
        max_delivery_count=7,
        requires_session=True,
        dead_lettering_on_message_expiration=True,
        forward_dead_lettered_messages_to="dead",
        authorization_rules=[rule],
    )
    before = dict(admin.get_queue("orders").items())
    run("queue update orders --lock-duration 30s --user-metadata mine --requires-session")
    assert capsys.readouterr().out == "updated queue orders\n"
    after = dict(admin.get_queue("orders").items())
    assert (after["lock_duration"], after["user_metadata"]) == (timedelta(seconds=30), "mine")
    for settings in (before, after):
        rules = settings.pop("authorization_rules")
        assert [(each.key_name, each.primary_key) for each in rules] == [("sending", KEY)]
    changed = {name for name, value in before.items() if value != after[name]}
    assert changed == {"lock_duration", "user_metadata"}
    run("queue update orders --no-dead-lettering-on-message-expiration --status senddisabled")
    assert main(["queue", "update", "orders", "--forward-dead-lettered-messages-to", ""]) == 0
    assert main(["queue", "update", "orders", "--user-metadata", ""]) == 0
    last = admin.get_queue("orders")
    assert last.dead_lettering_on_message_expiration is False
    assert last.forward_dead_lettered_messages_to is None
    assert not last.user_metadata
    assert (last.status, last.max_delivery_count) == ("SendDisabled", 7)
    assert last.lock_duration == timedelta(seconds=30)
    run("queue update orders --forward-dead-lettered-messages-to dead --status active")
    assert (admin.get_queue("orders").forward_dead_lettered_messages_to or "").endswith("/dead")


def test_topics_and_subscriptions(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("news", default_message_time_to_live=timedelta(days=3))
    admin.create_subscription("news", "all", max_delivery_count=7)
    run("topic update news --user-metadata mine --max-size-in-megabytes 2048")
    run("subscription update news all --lock-duration 2m")
    topic, subscription = admin.get_topic("news"), admin.get_subscription("news", "all")
    assert (topic.user_metadata, topic.max_size_in_megabytes) == ("mine", 2_048)
    assert topic.default_message_time_to_live == timedelta(days=3)
    assert subscription.lock_duration == timedelta(minutes=2)
    assert subscription.max_delivery_count == 7
    assert [rule.name for rule in admin.list_rules("news", "all")] == ["$Default"]


@pytest.mark.parametrize(
    "option", ["--enable-partitioning", "--requires-session", "--requires-duplicate-detection"]
)
def test_what_cannot_change_is_refused_whole(
    admin: ServiceBusAdministrationClient, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    name = f"fixed{option}"
    admin.create_queue(name)
    assert main(["queue", "update", name, "--max-delivery-count", "3", option]) == 1
    said = complaint(capsys.readouterr().err)
    assert "can be set only at creation (nothing was changed)" in said
    assert said.endswith(f"; delete the queue and create it again with {option}")
    assert admin.get_queue(name).max_delivery_count == 10


def test_nothing_to_change_and_values_out_of_range(
    admin: ServiceBusAdministrationClient, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_queue("same")
    assert main(["queue", "update", "same"]) == 2
    assert "nothing to change" in complaint(capsys.readouterr().err)
    assert main(["queue", "update", "same", "--lock-duration", "10m"]) == 1
    assert "lock" in complaint(capsys.readouterr().err).lower()
    with pytest.raises(SystemExit):
        main(["queue", "update", "same", "--status", "asleep"])
    assert "is not a status" in capsys.readouterr().err


@pytest.mark.proves("E-2", "E-12")
def test_a_partitioned_queue_on_several_brokers_through_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is that of each partition, given or left."""
    with run_server(tmp_path, brokers=2, stores=2) as bus:
        monkeypatch.setenv(CONNECTION_STRING, bus.server.connection_string)
        with connect(bus.server) as admin:
            admin.create_queue("wide", enable_partitioning=True, max_size_in_megabytes=2_048)
            run("queue update wide --max-delivery-count 3 --enable-partitioning")
            assert admin.get_queue("wide").max_size_in_megabytes == 16 * 2_048
            run("queue update wide --max-size-in-megabytes 3072")
        bus.server.stop()
        bus.server.restart()
        with connect(bus.server) as admin:
            queue = admin.get_queue("wide")
            assert (queue.max_size_in_megabytes, queue.max_delivery_count) == (16 * 3_072, 3)
            assert queue.enable_partitioning is True
