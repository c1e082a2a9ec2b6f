"""Beats: how a broker process and its stores are doing, four times a second.

    (BEAT, ANY, loop lag, CPU ms, bytes of memory, stores, new lines of the log)

The lines come along because a process that hangs cannot be asked for them any more.
"""

from typing import NamedTuple

from twinbus.links.remote.operations import ANY, BEAT, Operation


class StoreBeat(NamedTuple):
    """One store."""

    store: int
    commit_age_ms: int  # of the oldest change that is not durable
    facts_waiting: int
    message_count: int
    entity_count: int
    free_bytes: int  # on its disk; -1: not known
    slowed: int  # operations of its disk that a fault has slowed, let fail, refused room
    failed: int
    refused: int
    trouble: str = ""  # what it has noticed of itself, for people


class Beat(NamedTuple):
    """One process."""

    lag_ms: int  # how late its loop was
    cpu_ms: int  # used so far
    memory_bytes: int
    stores: list[StoreBeat]
    log: list[str]  # lines since the last beat


def encode_beat(beat: Beat) -> Operation:
    stores = [tuple(store) for store in beat.stores]
    return (BEAT, ANY, beat.lag_ms, beat.cpu_ms, beat.memory_bytes, stores, beat.log)


def decode_beat(operation: Operation) -> Beat:
    _, _, lag_ms, cpu_ms, memory_bytes, stores, log = operation
    return Beat(lag_ms, cpu_ms, memory_bytes, [StoreBeat(*store) for store in stores], log)
