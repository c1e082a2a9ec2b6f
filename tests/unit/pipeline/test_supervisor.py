"""When a query is started again, after how long, and when not; with queries that fail as told."""

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.errors import ConfigError, EntityNotFound, ServerBusy
from twinbus.pipeline.running import supervisor
from twinbus.pipeline.running.supervisor import (
    PAUSE_S_MAX,
    QueryFailed,
    is_final,
    reason_of,
    stop_on_signals,
    supervise,
)

# As Spark 4.3 hands it on, with the lines of the traceback left out.
STREAM_ERROR = """\
[STREAM_FAILED] Query [id = 6abb, runId = bfab] terminated with exception: [PYTHON_STREAMING_\
DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "source.py", line 17, in latestOffset
    raise errors.{kind}("reason: with a colon")
twinbus.errors.{kind}: reason: with a colon

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 295, in main
UnboundLocalError: cannot access local variable 'reader'
 SQLSTATE: 38000 SQLSTATE: XXKST
"""


class FakeProgress(dict[str, Any]):
    """Spark's is a dict, too, with its JSON beside."""

    @property
    def json(self) -> str:
        return json.dumps(self)


class FakeQuery:
    """Does some batches, then ends: with an error, or by itself."""

    def __init__(self, batches: int, error: Exception | None = None) -> None:
        self._error = error
        self.recentProgress = [
            FakeProgress(timestamp=f"2026-11-16T10:00:{batch:02}.000Z", batchId=batch)
            for batch in range(batches)
        ]
        self.isActive = True

    @property
    def lastProgress(self) -> FakeProgress | None:  # noqa: N802  as Spark spells it
        return self.recentProgress[-1] if self.recentProgress else None

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802
        assert timeout >= 1
        self.isActive = False
        if self._error is not None:
            raise self._error
        return True


class EndlessQuery(FakeQuery):
    """Runs until it is stopped."""

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802
        assert timeout >= 1
        return False

    def stop(self) -> None:
        self.isActive = False


class Run:
    """One supervision of queries that are started one after the other."""

    def __init__(self, queries: Sequence[FakeQuery | Exception]) -> None:
        self._queries = iter(queries)
        self.batches: list[int] = []
        self.lines: list[str] = []
        self.slept_s = 0.0
        self.pauses_s: list[float] = []

    def start(self) -> StreamingQuery:
        query = next(self._queries)
        if isinstance(query, Exception):
            raise query
        return cast(StreamingQuery, query)

    def supervise(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        supervise(
            self.start,
            on_progress=lambda progress: self.batches.append(progress["batchId"]),
            should_stop=should_stop,
            on_restart=self.restarted,
            sleep=self.sleep,
        )
        self.pauses_s.append(round(self.slept_s, 1))

    def restarted(self, line: str) -> None:
        self.lines.append(line)
        self.pauses_s.append(round(self.slept_s, 1))
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def failing(kind: str = "ServerBusy", batches: int = 0) -> FakeQuery:
    return FakeQuery(batches, StreamingQueryException(STREAM_ERROR.format(kind=kind)))


def test_a_query_that_ends_is_not_started_again() -> None:
    run = Run([FakeQuery(3)])
    run.supervise()
    assert run.batches == [0, 1, 2]
    assert run.lines == []


@pytest.mark.proves("D-7")
def test_a_failed_query_is_started_again_and_says_why() -> None:
    run = Run([failing(), FakeQuery(1)])
    run.supervise()
    assert run.lines == ["ServerBusy: reason: with a colon; starting again in 1 s"]
    assert run.batches == [0]


def test_pauses_double_up_to_a_minute_and_begin_anew_after_a_good_batch() -> None:
    run = Run([*[failing() for _ in range(8)], failing(batches=2), failing(), FakeQuery(0)])
    run.supervise()
    assert run.pauses_s[1:] == [1, 2, 4, 8, 16, 32, PAUSE_S_MAX, PAUSE_S_MAX, 1, 2]
    assert run.batches == [0, 1]


def test_what_cannot_mend_itself_is_an_error_at_once() -> None:
    run = Run([failing("EntityNotFound", batches=1)])
    with pytest.raises(QueryFailed, match=r"^EntityNotFound: reason: with a colon$"):
        run.supervise()
    assert run.batches == [0]
    assert run.lines == []


def test_a_query_that_cannot_start_is_judged_in_the_same_way() -> None:
    run = Run([ServerBusy("later"), ConfigError("no such option")])
    with pytest.raises(QueryFailed, match=r"^ConfigError: no such option$"):
        run.supervise()
    assert run.lines == ["ServerBusy: later; starting again in 1 s"]


def test_a_bug_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        Run([ZeroDivisionError()]).supervise()


def test_a_running_query_is_stopped() -> None:
    query = EndlessQuery(2)
    looks = iter([False, False, True])
    run = Run([query])
    run.supervise(lambda: next(looks))
    assert not query.isActive
    assert run.batches == [0, 1]


def test_a_pause_ends_when_all_is_to_end() -> None:
    run = Run([failing()])
    run.supervise(lambda: bool(run.lines))
    assert run.slept_s == 0


@pytest.mark.proves("D-7")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_cleanly_and_the_second_at_once(number: int) -> None:
    """Ctrl-C"""
    before = signal.getsignal(number)
    with stop_on_signals() as should_stop:
        assert not should_stop()
        os.kill(os.getpid(), number)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    "error, final",
    [
        (EntityNotFound("orders"), True),
        (ServerBusy("orders"), False),
        (AnalysisException("[UNRESOLVED_COLUMN] A column cannot be resolved"), True),
        (AnalysisException(STREAM_ERROR.format(kind="ServerBusy")), False),
        (AnalysisException(STREAM_ERROR.format(kind="Unauthorized")), True),
        (StreamingQueryException("Job aborted due to stage failure: executor lost"), False),
        (Py4JNetworkError("Java is gone"), True),
    ],
)
def test_which_errors_are_final(error: Exception, final: bool) -> None:
    assert is_final(error) == final


def test_reasons_are_one_line_of_bounded_length() -> None:
    long = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: disk\nat java"
    )
    assert reason_of(long) == "StreamingQueryException: disk"
    assert len(reason_of(ConfigError("x" * 1_000))) == supervisor._REASON_LENGTH_MAX
