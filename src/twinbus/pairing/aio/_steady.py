"""A sender that goes on: the SDK's sender, opened when first needed and replaced when it breaks.

The SDK's sender must not be used by two tasks at once, and one whose connection hangs, or whose
caller was cancelled in the middle of a frame, is of no further use.  Nothing here decides what an
error means for the pair: it is raised as the SDK raised it.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing.aio._refusals import raise_refusals
from twinbus.pairing.aio._watch import Watch
from twinbus.pairing.batch import of_sender
from twinbus.pairing.blocking._refusals import Tries
from twinbus.pairing.classification import is_broken_by
from twinbus.pairing.client import CLOSE_S_MAX, OPEN_S_MAX
from twinbus.pairing.errors import PairFaultedError
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.namespace_ids import ANY, check, id_told_to

# The SDK looks at its own timeout only between two reads of 0.2 s.  Past this it hangs, for
# instance in a write to a peer that reads no more.
LATE_S_MAX: Final = 1.0


class Closing:
    """SDK objects that are being closed while everybody else goes on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, close: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(close)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Until all of them are closed: what is left open would complain when the loop ends."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def close_in_time(close: Callable[[], Awaitable[None]]) -> None:
    """Close something of the SDK, whatever state it is in; what fails then matters to nobody."""
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await close()
    except Exception as error:  # noqa: BLE001 - it is being thrown away
        LOGGER.debug("closing failed: error=%r", error)


class Guard:
    """A syphon's messages go only to the namespace that they are for (P-19).

    The SDK may open a link again in the middle of a send, and by then somebody else may answer at
    the address.  This stands in for the `_open` of one SDK sender, by which all of its calls open.
    """

    def __init__(self, sdk: ServiceBusSender) -> None:
        self.meant_for = ANY  # ids, while something is sent that is for these alone
        self._sdk = sdk
        self._open = sdk._open  # noqa: SLF001 - the only place where every opening is seen
        sdk._open = self.open  # type: ignore[method-assign]  # noqa: SLF001 - as above

    async def open(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as the SDK's
        await self._open(timeout)
        if self.meant_for:
            check(id_told_to(self._sdk), self.meant_for)


class SteadySender:
    """One SDK sender at a time, used by one task at a time.

    Opening it is a task of its own: all who wait for it share it, and one whose time is short does
    not stop it for those who come later.
    """

    def __init__(
        self,
        make: Callable[[], ServiceBusSender],
        closing: Closing,
        first: ServiceBusSender | None = None,
        learn: Callable[[str | None], None] | None = None,
        is_guarded: bool = False,
    ) -> None:
        """`first` was made already: the SDK checks names when it makes a sender.

        `learn` is told the id of the peer's namespace whenever a link has opened.  `is_guarded`:
        for `send_home`.
        """
        self._learn = learn
        self._is_guarded = is_guarded
        self._guard: Guard | None = None  # of the SDK's sender
        self._handler: Any = None  # the SDK's own link, when somebody was told last
        self.batch_bytes = 0  # the largest batch that the peer takes; 0: not known yet
        self._make = make
        self._closing = closing
        self._mutex = asyncio.Lock()
        self._user_count = 0  # who has the mutex or may wait for it
        self._watch = Watch()
        self._tries = Tries()
        self._is_closed = False
        self._sdk: ServiceBusSender | None = None
        self._first = first
        self._opening: asyncio.Task[ServiceBusSender] | None = None

    async def send(self, outgoing: Any, timeout_s: float) -> None:
        sdk = self._sdk
        if sdk is None or self._user_count:
            await self._use("send_messages", timeout_s, outgoing)
            return
        # Nobody else is sending, which is the rule: there is nothing to wait for but the answer.
        watch = self._watch
        self._user_count += 1
        await self._mutex.acquire()
        try:
            watch.begin(timeout_s + LATE_S_MAX)
            self._tries.begin()
            if isinstance(outgoing, ServiceBusMessageBatch):
                outgoing = of_sender(sdk, outgoing)
            await sdk.send_messages(outgoing, timeout=timeout_s)
            watch.end()
            if self._learn is not None and self._handler is not sdk._handler:  # noqa: SLF001
                self._tell(sdk)  # the SDK has opened it again
        except BaseException as error:
            is_late = watch.end()
            self._leave_if_broken(sdk, error)
            is_late = is_late and isinstance(error, asyncio.CancelledError)
            if is_late or isinstance(error, TimeoutError):
                raise _timed_out(timeout_s) from error
            raise
        finally:
            self._mutex.release()
            self._user_count -= 1

    async def send_home(self, outgoing: Any, timeout_s: float, namespaces: frozenset[str]) -> None:
        """Only to a namespace of these ids, or to one that tells none."""
        if namespaces:
            await self._use("send_messages", timeout_s, outgoing, meant_for=namespaces)
        else:
            await self.send(outgoing, timeout_s)

    async def namespace(self, timeout_s: float) -> str | None:
        """The id that the peer tells; opens the link, unless it is open."""
        await self._use(None, timeout_s)
        return id_told_to(self._sdk)

    async def schedule(self, outgoing: Any, time_utc: dt.datetime, timeout_s: float) -> list[int]:
        numbers = await self._use("schedule_messages", timeout_s, outgoing, time_utc)
        return cast(list[int], numbers)

    async def cancel(self, sequence_numbers: int | list[int], timeout_s: float) -> None:
        await self._use("cancel_scheduled_messages", timeout_s, sequence_numbers)

    async def open(self, timeout_s: float) -> None:
        """Only open it: then `batch_bytes` is known."""
        await self._use(None, timeout_s)

    async def rest(self) -> None:
        """After those whose turn is before; the next one to use it opens a new SDK sender."""
        self._user_count += 1
        try:
            async with self._mutex:
                sdk, self._sdk = self._sdk, None
                if sdk is not None:
                    await close_in_time(sdk.close)
        finally:
            self._user_count -= 1

    async def close(self) -> None:
        """For ever; a send that is under way fails."""
        self._is_closed = True
        self._watch.close()
        sdk, self._sdk = self._sdk, None
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait({opening})
        if sdk is not None:
            await close_in_time(sdk.close)

    async def _use(
        self, method: str | None, timeout_s: float, *arguments: Any, meant_for: frozenset[str] = ANY
    ) -> Any:
        now = asyncio.get_running_loop().time
        end = now() + timeout_s
        self._user_count += 1
        try:
            async with asyncio.timeout_at(end + LATE_S_MAX):
                while True:
                    sdk = self._sdk or await self._opened(end - now())
                    async with self._mutex:
                        if sdk is self._sdk:  # else it has broken while we waited for our turn
                            with self._only_for(meant_for):
                                return await self._call(sdk, method, arguments, end - now())
        except TimeoutError as error:
            raise _timed_out(timeout_s) from error
        finally:
            self._user_count -= 1

    @contextmanager
    def _only_for(self, meant_for: frozenset[str]) -> Iterator[None]:
        guard = self._guard
        assert guard is not None or not meant_for, "made without a guard"
        if guard is None:
            yield
            return
        guard.meant_for = meant_for
        try:
            yield
        finally:
            guard.meant_for = ANY

    def _tell(self, sdk: ServiceBusSender) -> None:
        if self._learn is not None:
            self._handler = sdk._handler  # noqa: SLF001 - only compared
            self._learn(id_told_to(sdk))

    async def _call(
        self, sdk: ServiceBusSender, method: str | None, arguments: tuple[Any, ...], left_s: float
    ) -> Any:
        if left_s <= 0:
            raise TimeoutError
        try:
            if method is not None:
                self._tries.begin()
                given = [of_sender(sdk, each) for each in arguments]
                return await getattr(sdk, method)(*given, timeout=left_s)
        except BaseException as error:
            self._leave_if_broken(sdk, error)
            raise

    def _leave_if_broken(self, sdk: ServiceBusSender, error: BaseException) -> None:
        if self._is_closed and isinstance(error, Exception):
            raise _closed() from error  # whatever it looks like to the SDK
        if self._sdk is sdk and is_broken_by(error):
            self._sdk = None
            self._closing.begin(close_in_time(sdk.close))

    async def _opened(self, left_s: float) -> ServiceBusSender:
        if self._is_closed:
            raise _closed()
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_ignore)
        opening = self._opening
        done, _ = await asyncio.wait({opening}, timeout=left_s)
        if not done:
            raise TimeoutError
        if opening.cancelled():
            raise _closed()
        return opening.result()

    async def _open(self) -> ServiceBusSender:
        sdk, self._first = self._first or self._make(), None
        self._tries = raise_refusals(sdk)
        self._guard = Guard(sdk) if self._is_guarded else None
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                await sdk.__aenter__()
                self.batch_bytes = (await sdk.create_message_batch()).max_size_in_bytes
        except BaseException:
            self._closing.begin(close_in_time(sdk.close))
            raise
        else:
            self._sdk = sdk
            self._tell(sdk)
            return sdk
        finally:
            self._opening = None


def _closed() -> PairFaultedError:
    """No ValueError, as the SDK has it: a message would be blamed for it."""
    return PairFaultedError("The sender has been closed.")


def _timed_out(timeout_s: float) -> OperationTimeoutError:
    return OperationTimeoutError(message=f"The operation has not ended within its {timeout_s:g} s.")


def _ignore(opening: asyncio.Task[ServiceBusSender]) -> None:
    """Whoever still waits for it has the error; if nobody does, nobody needs it."""
    if not opening.cancelled():
        opening.exception()
