"""Commits by the kernel, on a real disk, and what becomes of those it does not write."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from twinbus.broker.commit_ring import CommitRing
from twinbus.broker.shell import BrokerShell
from twinbus.broker.store_run import finish_commit
from twinbus.clock import SystemClock
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import LogPoisoned
from twinbus.storage.disk import OsDisk
from twinbus.storage.log import Commit
from twinbus.storage.ring import WriteRing
from twinbus.storage.store import Store

pytestmark = pytest.mark.asyncio

SEGMENT_SIZE = 65_536


class Told(WriteRing):
    """A kernel that says what it is told to say, and writes nothing."""

    def __init__(self, answer: Callable[[int], int]) -> None:
        super().__init__()
        self._told = answer
        self._size = 0

    def begin(self, fd: int, buffers: list[bytes], offset: int) -> None:
        self._size = sum(map(len, buffers))
        super().begin(fd, [], offset)

    def result(self) -> int | None:
        result = super().result()
        return None if result is None else self._told(self._size)


def opened(directory: Path) -> Store:
    return Store.open(OsDisk(directory), SystemClock().now(), 7, SEGMENT_SIZE)


def commit_of(store: Store, name: str) -> Commit:
    store.create_entity("queue", name, QueueDescription())
    commit = store.begin_commit()
    assert commit is not None
    return commit


async def outcome_of(commit: Commit, ring: WriteRing | None) -> object:
    """Who has it in the end: an error or None if it was written, otherwise why it was not."""
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    commits = CommitRing(
        ring,
        asyncio.get_running_loop(),
        lambda of, error: outcome.set_result(error),
        lambda of: outcome.set_result("undone"),
    )
    if not commits.begin(commit):
        await commits.stop()
        return "not begun"
    await commits.stop()
    assert not commits.is_there
    return await outcome


async def test_a_commit_survives(tmp_path: Path) -> None:
    store = opened(tmp_path)
    commit = commit_of(store, "orders")
    ring = store.ring()
    if ring is None:
        assert await outcome_of(commit, ring) == "not begun"
        commit.write()
    else:
        assert await outcome_of(commit, ring) is None
    finish_commit(store, commit)
    store.close()
    again = opened(tmp_path)
    assert "orders" in again.names
    again.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda size: size - 1, "undone"),  # a short write
        (lambda size: -errno.EOPNOTSUPP, "undone"),  # a file system without synchronous writes
        (lambda size: -errno.EIO, LogPoisoned),
        (lambda size: -errno.ENOSPC, LogPoisoned),
    ],
)
async def test_what_the_kernel_does_not_write(
    tmp_path: Path, answer: Callable[[int], int], expected: object
) -> None:
    """An error poisons the log; the rest is written in another way."""
    store = opened(tmp_path)
    commit = commit_of(store, "orders")
    if store.ring() is None:
        commit.write()
    else:
        outcome = await outcome_of(commit, Told(answer))
        if expected == "undone":
            assert outcome == "undone"
            commit.write()
            finish_commit(store, commit)
        else:
            assert type(outcome) is LogPoisoned
            with pytest.raises(LogPoisoned):
                commit.write()
    store.close()


async def test_a_shell_goes_on_where_the_kernel_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsDisk, "ring", lambda disk: None)
    store = opened(tmp_path)
    failures: list[BaseException] = []
    shell = BrokerShell(store, SystemClock(), lambda replies: None, failures.append)
    shell.writes_inline = False
    store.create_entity("queue", "orders", QueueDescription())
    await shell.close()
    assert failures == []
    again = opened(tmp_path)
    assert "orders" in again.names
    again.close()
