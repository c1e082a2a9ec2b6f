"""What a deployment survives: one table, for `twinbus doctor`, the page and the documentation.

Whatever fails, what was acknowledged is on the disk.  What differs is who goes on meanwhile, and
that follows from how many broker processes, stores and disks there are.  A journal takes the sends
of a store that is slow or down into another store (A-3): with one store there is none, and one on
the same disk is no help when that disk is slow or dead.

Pure: numbers in, sentences out.
"""

from dataclasses import dataclass
from typing import Final

GOES_ON: Final = "goes on"  # sending does, and nothing is lost
WAITS: Final = "waits"  # nothing is lost, and it comes back by itself
STOPS: Final = "stops"  # nothing is lost, and somebody has to do something
LOST: Final = "lost"  # what was not fetched yet is gone

_TWO_DISKS: Final = "serve with --brokers 2 and a --store on each of two disks"


@dataclass(frozen=True)
class Deployment:
    """How a server is laid out."""

    brokers: int  # processes; 0: the server's own process is the broker
    stores: int
    disks: int  # that the stores are on, as far as the server can tell


@dataclass(frozen=True)
class Outcome:
    """What one kind of failure does to it."""

    failure: str
    verdict: str
    what: str
    fix: str = ""  # how to deploy it so that it does better; empty: that cannot be helped here
    beyond: str = ""  # what helps outside this server


def survival(deployment: Deployment) -> list[Outcome]:
    """Every kind of failure, in the order of docs/concepts/failure-modes.md."""
    return [
        Outcome(
            "server killed",
            STOPS,
            "by kill -9, a crash or a power cut: nothing until it is started again; then all that "
            "was acknowledged is there",
            beyond="have it started again by systemd or the container's restart policy",
        ),
        _broker_lost(deployment),
        _broker_hung(deployment),
        _slow_store(deployment),
        _failed_disk(deployment),
        _full_disk(deployment),
        Outcome(
            "machine lost",
            LOST,
            "or its data centre: the messages that wait here are lost with its disks",
            beyond="pair the application with a namespace elsewhere: sending goes on; back up",
        ),
    ]


def _broker_lost(deployment: Deployment) -> Outcome:
    failure = "broker lost"
    if deployment.brokers == 0:
        what = "the broker is the server's own process: as after a kill -9"
        return Outcome(failure, STOPS, what, "serve with --brokers 2")
    return _after_a_broker(failure, deployment, "")


def _broker_hung(deployment: Deployment) -> Outcome:
    failure = "broker hung"
    if deployment.brokers == 0:
        what = "the server hangs, and nobody restarts it"
        return Outcome(failure, STOPS, what, "serve with --brokers 2, which are watched")
    return _after_a_broker(failure, deployment, "found out after 2 s; ")


def _after_a_broker(failure: str, deployment: Deployment, begins: str) -> Outcome:
    if deployment.brokers == 1:
        what = "it is started again in seconds; until then clients hear that it is unavailable"
        return Outcome(failure, WAITS, begins + what, "serve with --brokers 2")
    if deployment.stores == 1:
        what = "another opens the store in seconds; until then clients hear that it is unavailable"
        return Outcome(failure, WAITS, begins + what, "serve with --store twice")
    what = "others take its stores over in seconds; sends go elsewhere or into the journal"
    return Outcome(failure, GOES_ON, begins + what)


def _slow_store(deployment: Deployment) -> Outcome:
    failure = "store slow"
    if deployment.stores == 1:
        what = "every send waits as long as the disk takes: there is no other store for a journal"
        return Outcome(failure, WAITS, what, _TWO_DISKS)
    if deployment.disks == 1:
        what = "a slow disk has all stores, and the journal with them, so every send waits"
        return Outcome(failure, WAITS, what, _TWO_DISKS)
    return Outcome(
        failure,
        GOES_ON,
        "sends go elsewhere or, for up to 15 minutes, into the journal of another store",
    )


def _failed_disk(deployment: Deployment) -> Outcome:
    failure = "disk failed"
    mirror = "mirror the disk: what waits on a dead one is lost"
    if deployment.brokers == 0:
        what = "the server stops with exit code 3, and what it has acknowledged is on that disk"
        return Outcome(failure, STOPS, what, _TWO_DISKS, mirror)
    if deployment.stores == 1 or deployment.disks == 1:
        what = "every store is down, and tried again every 10 s, until the disk works"
        return Outcome(failure, WAITS, what, _TWO_DISKS, mirror)
    what = "sends go elsewhere or, for up to 15 minutes, into the journal; the rest there waits"
    return Outcome(failure, GOES_ON, what, beyond=mirror)


def _full_disk(deployment: Deployment) -> Outcome:
    failure = "disk full"
    if deployment.stores == 1 or deployment.disks == 1:
        what = "sends are refused until there is room; receiving and settling go on"
        return Outcome(failure, WAITS, what, _TWO_DISKS, "make room, or watch the free space")
    what = "sends go elsewhere or into the journal; receiving and settling go on"
    return Outcome(failure, GOES_ON, what)
