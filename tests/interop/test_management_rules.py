"""Rules over AMQP on a real server: by the Node SDK's rule manager, and by raw requests."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.interop.test_node_sdk import NODE, find_program, node_modules
from twinbus.amqp.types import Int
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.errors import ArgumentInvalid, EntityAlreadyExists, InvalidOperation, ServiceError
from twinbus.testing.server import ServerProcess

__all__ = ["node_modules"]  # a fixture

ALL: dict[object, object] = {"top": Int(1_000), "skip": Int(0)}


def create(server: ServerProcess, topic: str) -> str:
    server.admin.create(TOPIC, [topic], {})
    server.admin.create(SUBSCRIPTION, [topic, "all"], {})
    return topic


def run(server: ServerProcess, node_modules: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        "NODE_PATH": str(node_modules),
        "TWINBUS_CONNECTION_STRING": server.connection_string,
    }
    command = [find_program("node"), str(NODE / "rules.cjs"), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proves("M-6", "M-10", "M-13")
@pytest.mark.feature("topic.rules-amqp")
@pytest.mark.parametrize("scenario", ["rules", "effect", "refused"])
def test_the_rule_manager_of_node(server: ServerProcess, node_modules: Path, scenario: str) -> None:
    run(server, node_modules, scenario, create(server, f"node-{scenario}"), "all")


@pytest.mark.feature("ours.delay")
def test_node_abandons_with_a_delay(server: ServerProcess, node_modules: Path) -> None:
    server.create_queue("node-delay")
    run(server, node_modules, "delay", "node-delay")


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.rules-amqp")
@pytest.mark.asyncio
async def test_raw_requests(server: ServerProcess) -> None:
    """And what was answered is there after a kill -9."""
    create(server, "raw")
    async with await BusConnection.open(server.connection_string) as connection:
        node = await ManagementNode.open(connection, "raw/Subscriptions/all")
        rule: dict[object, object] = {
            "rule-name": "r",
            "rule-description": {"sql-filter": {"expression": "a = 1"}},
        }
        assert await node.request("com.microsoft:add-rule", rule) == {}
        with pytest.raises(EntityAlreadyExists):
            await node.request("com.microsoft:add-rule", rule)
        bad: dict[object, object] = {
            **rule,
            "rule-description": {"sql-filter": {"expression": "a = = 1"}},
        }
        with pytest.raises(ArgumentInvalid, match="5"):
            await node.request("com.microsoft:add-rule", bad)
        with pytest.raises(ServiceError, match="could not be found"):
            await node.request("com.microsoft:remove-rule", {"rule-name": "missing"})
        topic = await ManagementNode.open(connection, "raw")
        with pytest.raises(InvalidOperation):
            await topic.request("com.microsoft:enumerate-rules", ALL)
    server.kill()
    server.restart()
    async with await BusConnection.open(server.connection_string) as connection:
        node = await ManagementNode.open(connection, "raw/Subscriptions/all")
        answer = await node.request("com.microsoft:enumerate-rules", ALL)
        rules = answer["rules"]
        assert isinstance(rules, list)
        assert [entry["rule-description"].value[2] for entry in rules] == ["$Default", "r"]
