"""Keeps a streaming query running: Spark ends one at the first error of its source or sink.

A query is started again from its checkpoint after 1 s, then 2 s, 4 s … up to a minute, and at once
quickly again when a batch went well in between.  What cannot mend itself, such as a wrong option
or a queue that does not exist, is an error immediately.  Nothing here decides what is read or sent:
the checkpoint and the bus do, so a restart loses nothing.
"""

import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from twinbus import errors
from twinbus.errors import TwinbusError

PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 60.0
LOOK_S: Final = 1  # between two looks at a query
_SLICE_S: Final = 0.2

# Trying again would only say the same again.  Others may mend: a full queue is emptied, a disabled
# one is enabled, a broker comes back.
FINAL: Final = frozenset(
    error.__name__
    for error in (
        errors.ArgumentInvalid,
        errors.ArgumentOutOfRange,
        errors.ConfigError,
        errors.EntityNotFound,
        errors.InvalidOperation,
        errors.MessageSizeExceeded,
        errors.NotSupported,
        errors.Unauthorized,
        ImportError,
        ModuleNotFoundError,
        SyntaxError,
        TypeError,
    )
) | {"DataLoss", "RowRefused"}
# Spark hands on errors of Python as text; the last line of each is `twinbus.errors.X: reason`.
_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^((?:\w+\.)*)([A-Z]\w*): (\S.*)$", flags=re.MULTILINE)
_STREAM_FAILED: Final = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ")
_REASON_LENGTH_MAX: Final = 300

_log = logging.getLogger("twinbus.pipeline")


class QueryFailed(TwinbusError):
    """A query has ended with an error that another start would not mend."""


def supervise(
    start: Callable[[], StreamingQuery],
    *,
    on_progress: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], bool],
    on_restart: Callable[[str], None] = _log.warning,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run the query until it ends by itself or `should_stop`; `on_restart` gets a line each time.

    `start` makes the query anew, from the same checkpoint.  Raises QueryFailed.
    """
    pause_s = PAUSE_S_MIN
    while not should_stop():
        progressed = _Progress(on_progress)
        try:
            _run(start(), progressed, should_stop)
            return
        except (PySparkException, Py4JError, TwinbusError) as error:
            reason = reason_of(error)
            if is_final(error):
                raise QueryFailed(reason) from error
        if progressed.count:
            pause_s = PAUSE_S_MIN
        on_restart(f"{reason}; starting again in {pause_s:.0f} s")
        _rest(pause_s, should_stop, sleep)
        pause_s = min(pause_s * 2, PAUSE_S_MAX)


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM has come, for `should_stop`; a second one interrupts at once.

    An exception out of a signal handler would leave the conversation with Java half finished.
    """
    asked = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_final(error: BaseException) -> bool:
    """Whether another start would meet the same error."""
    if isinstance(error, Py4JNetworkError):  # Java is gone, and with it the session
        return True
    if isinstance(error, AnalysisException) and not _raised(str(error)):
        return True  # Spark does not understand what it is to do
    return _kind_and_text(error)[0] in FINAL


def reason_of(error: BaseException) -> str:
    """One line: what our own code, or whoever was last, had to say."""
    kind, text = _kind_and_text(error)
    return f"{kind}: {text}"[:_REASON_LENGTH_MAX]


def _kind_and_text(error: BaseException) -> tuple[str, str]:
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = text.partition("\n: ")[2]  # before that, which object was called
    elif not isinstance(error, PySparkException):
        return type(error).__name__, text
    raised = _raised(text)
    if not raised:
        return type(error).__name__, _STREAM_FAILED.sub("", text).strip().split("\n")[0]
    ours = [found for found in raised if found[0].startswith("twinbus.")]
    _, kind, reason = (ours or raised)[-1]
    return kind, reason.strip()


def _raised(text: str) -> list[tuple[str, str, str]]:
    """Module, class and text of each error at the end of a Python traceback."""
    ends = [_RAISED.search(part) for part in text.split(_TRACEBACK)[1:]]
    return [(end[1], end[2], end[3]) for end in ends if end is not None]


class _Progress:
    """Hands on each progress of a query once."""

    def __init__(self, hand_on: Callable[[dict[str, Any]], None]) -> None:
        self._hand_on = hand_on
        self._seen = ""  # the time of the last one, as Spark writes it
        self.count = 0

    def look(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None or last["timestamp"] <= self._seen:
            return
        for progress in query.recentProgress:
            if progress["timestamp"] > self._seen:
                self._seen = progress["timestamp"]
                self.count += 1
                # Spark's own object gives offsets as texts that are no longer JSON.
                self._hand_on(json.loads(progress.json))


def _run(query: StreamingQuery, progress: _Progress, should_stop: Callable[[], bool]) -> None:
    """Until the query ends or is to end; raises what it has ended with."""
    try:
        while not should_stop() and not query.awaitTermination(LOOK_S):
            progress.look(query)
    except StreamingQueryException:
        progress.look(query)
        raise
    finally:
        if query.isActive:
            query.stop()
    progress.look(query)


def _rest(seconds: float, should_stop: Callable[[], bool], sleep: Callable[[float], None]) -> None:
    for _ in range(round(seconds / _SLICE_S)):
        if should_stop():
            return
        sleep(_SLICE_S)
