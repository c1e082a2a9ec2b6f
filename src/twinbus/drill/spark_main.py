"""The process in which Spark works for a drill: one session, opened early, for all three tasks.

Reads a JSON line for each task from standard input and answers with JSON lines; ends when nobody
asks any more, so it outlives no drill.  The tasks are those of `twinbus pipeline syphon`,
`reconcile` and `cost`.  Standard output is for answers alone: what Java has to say goes to the log.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from twinbus.costs.prices import Prices
from twinbus.drill.pricing import bill_of, shipped_prices
from twinbus.errors import TwinbusError
from twinbus.pipeline.jobs.cost import bill, meter_directory, read_records
from twinbus.pipeline.jobs.ledgers import Columns, Source, read_ledger
from twinbus.pipeline.jobs.reconcile import reconcile
from twinbus.pipeline.jobs.syphon import SyphonSettings, Totals, start_syphon
from twinbus.pipeline.report.reconciliation import document
from twinbus.pipeline.running.session import DRIVER_OPTIONS, open_session
from twinbus.pipeline.running.supervisor import reason_of, supervise

Tell = Callable[[Mapping[str, Any]], None]
Answer = dict[str, Any]

# For thousands of messages rather than millions: few partitions, and a Java that starts quickly.
_CONF: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
}
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder}"
_REHEARSAL: Final = (
    '{"message_id":"a","entity":"b","session_id":"c","number":1,"time":1,"body_hash":"d"}\n'
)


class Tasks:
    """What can be asked for."""

    def __init__(self, spark: SparkSession, folder: Path, tell: Tell) -> None:
        self._spark = spark
        self._folder = folder
        self._tell = tell
        self._rounds = 0

    def syphon(self, primary: str, secondary: str, queues: Sequence[str]) -> Answer:
        """Bring the backlog home, until it is empty."""
        source = {"primary": primary, "secondary": secondary, "queues": ",".join(queues)}
        self._rounds += 1
        checkpoint = str(self._folder / f"checkpoint-{self._rounds}")
        settings = SyphonSettings({**source, "maxPerTask": "1000"}, checkpoint, is_once=True)
        totals = Totals()

        def take(rows: Sequence[Mapping[str, Any]]) -> None:
            totals.add(rows)
            self._tell({"moved": totals.moved_count})

        supervise(
            lambda: start_syphon(self._spark, settings, take),
            on_progress=_nothing,
            should_stop=_never,
            on_restart=lambda reason: self._tell({"said": reason}),
        )
        return {"moved": totals.moved_count, "dead_lettered": totals.dead_letter_count}

    def reconcile(self, sent: str, arrived: str) -> Answer:
        """The ledgers of accepted and of arrived messages, as files of JSON lines."""
        accepted = read_ledger(self._spark, Source("json", sent), Columns(), "sent")
        received = read_ledger(self._spark, Source("json", arrived), Columns(), "arrived")
        with reconcile(accepted, received, by_entity=True) as found:
            return document(found.outcome())

    def cost(self, data: Sequence[str]) -> Answer:
        """What the meters in these data directories come to."""
        prices: Prices = shipped_prices()
        directories = [meter_directory(each) for each in data]
        records = read_records(self._spark, directories, 0, 1 << 62).persist()
        found = bill(records, prices, ("kind",))
        kinds = {key[0]: each.units for key, each in found.rows}
        return vars(bill_of(found.total, found.pairing, kinds, prices))

    def rehearse(self) -> None:
        """Everything that Spark does for the first time takes seconds; so it does that early."""
        path = self._folder / "rehearsal.jsonl"
        path.write_text(_REHEARSAL)
        self.reconcile(str(path), str(path))


def _nothing(told: Mapping[str, Any]) -> None:
    """What Spark tells of a batch: rows know more."""


def _never() -> bool:
    return False


def main() -> int:
    folder = Path(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answers:
        return _serve(folder, answers)


def _serve(folder: Path, answers: TextIO) -> int:
    def tell(document: Mapping[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")

    conf = {**_CONF, DRIVER_OPTIONS: _JAVA_OPTIONS.format(folder=folder)}
    conf |= {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    try:
        spark = open_session("twinbus drill", conf=conf)
        tasks = Tasks(spark, folder, tell)
        tasks.rehearse()
    except (TwinbusError, PySparkException, Py4JError) as error:
        tell({"failed": reason_of(error)})
        return 1
    tell({"ready": spark.version})
    for line in sys.stdin:
        asked = json.loads(line)
        task: Callable[..., Answer] = getattr(tasks, asked.pop("task"))
        try:
            tell({"done": task(**asked)})
        except (TwinbusError, PySparkException, Py4JError) as error:
            tell({"failed": reason_of(error)})
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
