"""`GET /metrics`: what is gathered, in slices."""

import pytest

from tests.unit.server.observed import Observed, get
from twinbus.entities.commands import Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import NewMessage
from twinbus.errors import EntityNotFound

pytestmark = pytest.mark.asyncio


async def scrape(scene: Observed) -> dict[str, str]:
    answer = await scene.ask(get("/metrics", peer="127.0.0.1"))
    assert answer.status == 200
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.body.decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    found = {name: value for name, _, value in samples}
    assert len(found) == len(samples), "every sample stands once"
    return found


def at(namespace: str, entity: str) -> str:
    return f'{{namespace="{namespace}",entity="{entity}"}}'


async def test_counters_and_gauges() -> None:
    scene = await Observed.make()
    queue = scene.first.find_queue("orders")
    scene.harness.gateway.submit([Send(queue.entity_id, [NewMessage(b"x" * 100)])])
    scene.harness.run()
    queue.metrics.delivered(3, 300)
    scene.harness.gateway.metrics.of_namespace("other").answered(EntityNotFound("no"))
    samples = await scrape(scene)
    assert samples["servicebus_active_messages" + at("first", "orders")] == "1"
    assert samples["servicebus_active_messages" + at("other", "news")] == "0"
    assert samples["servicebus_outgoing_messages_total" + at("first", "orders")] == "3"
    assert "servicebus_outgoing_messages_total" + at("other", "news") not in samples
    nobody = at("other", "-NamespaceOnlyMetric-")
    assert samples["servicebus_user_errors_total" + nobody] == "1"
    assert samples['twinbus_store_up{store="0"}'] == "1"
    assert samples['twinbus_broker_up{broker="0"}'] == "1"


async def test_many_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.server.http.operations.metrics._SLICE", 3)
    monkeypatch.setattr("twinbus.server.http.operations.metrics.ENTITIES_MAX", 9)
    scene = await Observed.make()
    for number in range(10):
        await scene.run(scene.first.create_queue(f"many-{number}", QueueDescription()))
    samples = await scrape(scene)
    shown = [name for name in samples if name.startswith("servicebus_active_messages{")]
    assert shown == [f"servicebus_active_messages{at('first', f'many-{n}')}" for n in range(9)]


async def test_the_partitions_of_an_entity() -> None:
    scene = await Observed.make()
    description = QueueDescription(enable_partitioning=True)
    await scene.run(scene.first.create_queue("parts", description))
    samples = await scrape(scene)
    shown = {name: value for name, value in samples.items() if "twinbus_partition_up" in name}
    assert shown == {
        f'twinbus_partition_up{{namespace="first",entity="parts",partition="{n}",store="0"}}': "1"
        for n in range(16)
    }


@pytest.mark.proves("M-12")
async def test_a_token_shows_its_namespace() -> None:
    scene = await Observed.make()
    token = scene.sign("worker", "other key")
    answer = await scene.ask(get("/metrics", authorization=token))
    assert b'entity="news"' in answer.body
    assert b"orders" not in answer.body
