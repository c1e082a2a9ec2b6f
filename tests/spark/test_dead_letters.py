"""Dead letters by entity, reason and age; selections of them resubmitted and exported."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from pyspark.sql import DataFrame, SparkSession

from twinbus.cli.main import main
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.pipeline.bus import open_bus
from twinbus.pipeline.jobs.dead_letters import (
    UNDERTAKING,
    DeadLetterQueues,
    MoveTask,
    Resubmitted,
    ReturnTask,
    chosen,
    drops_known_ids,
    export,
    oldest,
    read_dead_letters,
    resubmit,
    summarised,
)
from twinbus.pipeline.jobs.replay import read_capture
from twinbus.pipeline.jobs.resending import renewed
from twinbus.pipeline.report import dead_letters as report
from twinbus.pipeline.sink.keys import stamped
from twinbus.testing.server import ServerProcess

DEAD = ServiceBusSubQueue.DEAD_LETTER
WAIT_S = 5

pytestmark = [pytest.mark.proves("D-6"), pytest.mark.feature("pipeline.dead-letters")]


@pytest.fixture(scope="module")
def sdk(bus: ServerProcess) -> Iterator[ServiceBusClient]:
    """Queues, one of them with duplicate detection, and a subscription, with dead letters."""
    bus.create_queue("shop", requires_duplicate_detection=True)
    bus.create_queue("mail")
    bus.create_queue("post")
    bus.create_queue("bin")
    bus.admin.create(TOPIC, ("news",), {})
    for name in ("a", "b"):
        bus.admin.create(SUBSCRIPTION, ("news", name), {})
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        with client.get_queue_sender("shop") as sender:
            sender.send_messages([message(f"s{n}", n) for n in range(40)])
        for queue in ("mail", "post"):
            with client.get_queue_sender(queue) as sender:
                sender.send_messages([message(f"{queue[0]}{n}", n) for n in range(5)])
        with client.get_topic_sender("news") as sender:
            sender.send_messages([message("n0", 0)])
        bury(client.get_queue_receiver("shop"), 40)
        bury(client.get_queue_receiver("mail"), 5)
        bury(client.get_queue_receiver("post"), 5)
        bury(client.get_subscription_receiver("news", "a"), 1)
        yield client


def message(name: str, number: int) -> ServiceBusMessage:
    return ServiceBusMessage(
        b"\x1b[31mred\xff" + name.encode(), message_id=name, application_properties={"n": number}
    )


def bury(receiver: object, count: int) -> None:
    """Dead-letter so many, for one of two reasons; descriptions differ by numbers and ids."""
    with receiver:  # type: ignore[attr-defined]
        left = count
        while left:
            for each in receiver.receive_messages(left, max_wait_time=WAIT_S):  # type: ignore[attr-defined]
                number = each.application_properties[b"n"]
                reason = "Malformed" if number % 4 == 0 else "Refused"
                receiver.dead_letter_message(  # type: ignore[attr-defined]
                    each, reason, f"line {number} of order 7f2c91aa-11de-4c07-9b1f-{number:012}"
                )
                left -= 1


def letters(spark: SparkSession, bus: ServerProcess, *entities: str) -> DataFrame:
    return read_dead_letters(spark, DeadLetterQueues(bus.connection_string, entities), True)


def ids(
    sdk: ServiceBusClient, queue: str, sub_queue: ServiceBusSubQueue | None = None
) -> list[str]:
    with sdk.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
        return [str(each.message_id) for each in receiver.peek_messages(250)]


@pytest.mark.proves("D-6")
def test_dead_letters_are_shown_resubmitted_and_exported(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, tmp_path: Path
) -> None:
    """Exactly the selection, once, and everything else stays as it is."""
    shown(spark, bus)

    # Back to where they were: past duplicate detection, without the reason, once.
    queues = DeadLetterQueues(bus.connection_string, ["shop"])
    where = "dead_letter_reason = 'Malformed' AND CAST(application_properties['n'] AS INT) > 3"
    selection = oldest(chosen(letters(spark, bus, "shop"), where, 0), 8)
    outcome = resubmit(selection, ReturnTask(queues))
    assert outcome == [Resubmitted("shop/$DeadLetterQueue", 8, 8)]
    back = [f"s{n}" for n in range(4, 36, 4)]
    assert ids(sdk, "shop") == back
    assert ids(sdk, "shop", DEAD) == [f"s{n}" for n in range(40) if f"s{n}" not in back]
    with sdk.get_queue_receiver("shop", max_wait_time=WAIT_S) as receiver:
        first = receiver.receive_messages(1)[0]
        assert first.application_properties == {b"n": 4}
        assert first.dead_letter_reason is None
        receiver.complete_message(first)

    # Of a subscription: into this one, not into the others.
    queues = DeadLetterQueues(bus.connection_string, ["news/Subscriptions/a"])
    outcome = resubmit(letters(spark, bus, *queues.entities), ReturnTask(queues))
    assert [each.removed for each in outcome] == [1]
    for name, count in (("a", 1), ("b", 1)):
        with sdk.get_subscription_receiver("news", name) as receiver:
            assert len(receiver.peek_messages(10)) == count

    exported(spark, bus, tmp_path)


def shown(spark: SparkSession, bus: ServerProcess) -> None:
    found = summarised(letters(spark, bus), SystemClock().now().utc_ms, 2)
    rows = {(row["entity_path"], row["reason"]): row.asDict(True) for row in found.collect()}
    # Another test moves those of `post`.
    counts = {key: row["message_count"] for key, row in rows.items() if "post" not in key[0]}
    assert counts == {
        ("shop/$DeadLetterQueue", "Refused"): 30,
        ("shop/$DeadLetterQueue", "Malformed"): 10,
        ("mail/$DeadLetterQueue", "Refused"): 3,
        ("mail/$DeadLetterQueue", "Malformed"): 2,
        ("news/Subscriptions/a/$DeadLetterQueue", "Malformed"): 1,
    }
    row = rows["shop/$DeadLetterQueue", "Refused"]
    assert row["description"] == "line <n> of order <id>"
    assert (row["within_hour"], row["within_day"], row["older"], len(row["samples"])) == (
        30,
        0,
        0,
        2,
    )
    assert row["first_time"] <= row["last_time"]
    # What a message says cannot command the terminal of who looks at it.
    texts = [*report.cells(row), *report.samples(row)]
    assert all(each.isprintable() for text in texts for each in text)
    assert '"message_id": "s' in json.dumps(report.document(row))


def exported(spark: SparkSession, bus: ServerProcess, tmp_path: Path) -> None:
    found = chosen(letters(spark, bus, "mail"), "message_id IN ('m1', 'm4')", None)
    assert export(found, str(tmp_path / "kept"), "parquet") == 2
    kept = read_capture(spark, str(tmp_path / "kept"), "parquet").orderBy("message_id").collect()
    assert [(row["message_id"], bytes(row["body"])) for row in kept] == [
        ("m1", b"\x1b[31mred\xffm1"),
        ("m4", b"\x1b[31mred\xffm4"),
    ]
    with pytest.raises(ConfigError, match="is there already"):
        export(found, str(tmp_path / "kept"), "parquet")


@pytest.mark.proves("D-6")
def test_dead_letters_moved_elsewhere_are_there_once_after_a_crash(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient
) -> None:
    """A run that died between sending and deleting is made good by the next one."""
    selection = chosen(letters(spark, bus, "post"), "message_id <> 'p0'", None)
    row = selection.where("message_id = 'p2'").collect()[0]
    sent = renewed(1, bytes(row["amqp"]), "bin", UNDERTAKING, row["position"])
    died = open_bus(bus.connection_string)
    died.send("bin", [stamped(sent.data, sent.key or "")])
    died.close()

    queues = DeadLetterQueues(bus.connection_string, ["post"])
    outcome = resubmit(selection, MoveTask(queues, "bin"))
    assert outcome == [Resubmitted("post/$DeadLetterQueue", 4, 4)]
    assert sorted(ids(sdk, "bin")) == ["p1", "p2", "p3", "p4"]
    assert ids(sdk, "post", DEAD) == ["p0"]


def test_commands(
    spark: SparkSession,
    bus: ServerProcess,
    sdk: ServiceBusClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be done is said in one line, and nothing has changed then."""
    before = ids(sdk, "mail", DEAD)

    def cli(action: str, *words: str) -> int:
        where = ["--connection-string", bus.connection_string, "--entity", "mail"]
        spoken = [*where, "--master", str(spark.sparkContext.master)]
        return main(["pipeline", "dead-letters", action, *spoken, *words])

    page = tmp_path / "page.html"
    assert cli("show", "--html", str(page), "--where", "message_id = 'm0'") == 0
    assert "mail/$DeadLetterQueue  Malformed" in capsys.readouterr().out
    assert "1 dead letters in 1 queues" in page.read_text()
    for words, reason in (
        (["--to", "nowhere"], "nowhere"),
        (["--where", "no_such_column = 1"], "the condition cannot be read"),
        (["--where", "message_id ="], "the condition cannot be read"),
    ):
        assert cli("resubmit", *words) == 1
        told = capsys.readouterr().err
        assert reason in told
        assert told.startswith("twinbus: ")
        assert told.count("\n") == 2
    assert ids(sdk, "mail", DEAD) == before


def test_a_queue_that_would_drop_what_it_knows_is_known(bus: ServerProcess) -> None:
    bus.create_queue("keen", requires_duplicate_detection=True)
    bus.create_queue("plain")
    assert drops_known_ids(bus.connection_string, "keen")
    assert not drops_known_ids(bus.connection_string, "plain")
    assert not drops_known_ids(bus.connection_string, "nowhere")
