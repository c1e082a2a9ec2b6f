"""What tests of topics and forwarding do again and again."""

import random

from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import content
from twinbus.entities.commands import RECEIVE_AND_DELETE, Command, Send
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.gateway.directory.directory import Entity
from twinbus.testing.disk import CrashMode


def sql(expression: str, action: str = "", name: str = "rule") -> RuleDescription:
    values: dict[str, object] = {"name": name, "expression": expression}
    if action:
        values["action"] = action
    return RuleDescription.from_mapping(values)


def by_subject(subject: str, name: str = "rule") -> RuleDescription:
    return RuleDescription.from_mapping({"name": name, "system": {"label": subject}})


def answer(bench: BrokerHarness, command: Command) -> object:
    """Submit, make durable, and give the result or raise the error."""
    bench.submit(command)
    bench.run()
    reply = bench.reply_to(command)
    assert reply is not None
    if reply.error is not None:
        raise reply.error
    return reply.result


def send(bench: BrokerHarness, queue: Queue | Entity, *messages: NewMessage) -> object:
    return answer(bench, Send(queue.entity_id, list(messages)))


def taken(
    bench: BrokerHarness, queue: Queue, subqueue: int = MAIN
) -> tuple[list[Message], list[bytes]]:
    """Everything that is in a part, taken out."""
    receiver, sink = bench.receiver(queue, 1_000, RECEIVE_AND_DELETE, subqueue)
    bench.run()
    receiver.close()
    return sink.messages, sink.bodies


def arrived(bench: BrokerHarness, queue: Queue, subqueue: int = MAIN) -> list[bytes]:
    """The bodies of everything that is in a part, taken out."""
    return [content(body) for body in taken(bench, queue, subqueue)[1]]


def restarted(bench: BrokerHarness) -> BrokerHarness:
    """The power goes; what was durable is there again."""
    disk = bench.disk.after_power_cut(random.Random(1), CrashMode.DROP)
    return BrokerHarness(disk, bench.clock)


def found(bench: BrokerHarness, name: str) -> Queue:
    return bench.store.entities[bench.store.names[name.lower()]]
