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
            "by kill -9, a crash or a power cut: nothing is served until it is started again; "
            "everything acknowledged is still there",
            beyond="let systemd or the container's restart policy start it again",
        ),
        _broker_lost(deployment),
        _broker_hung(deployment),
        _slow_store(deployment),
        _failed_disk(deployment),
        _full_disk(deployment),
        Outcome(
            "machine lost",
            LOST,
            "or its data centre: messages still waiting here are lost with its disks",
            beyond="pair the application with a namespace elsewhere, so that it can go on sending",
        ),
    ]


def _broker_lost(deployment: Deployment) -> Outcome:
    failure = "broker lost"
    if deployment.brokers == 0:
        what = "the broker is the server's own process: the same as a killed server"
        return Outcome(failure, STOPS, what, "serve with --brokers 2")
    return _after_a_broker(failure, deployment, "")


def _broker_hung(deployment: Deployment) -> Outcome:
    failure = "broker hung"
    if deployment.brokers == 0:
        what = "the server hangs, and nothing restarts it"
        return Outcome(failure, STOPS, what, "serve with --brokers 2: broker processes are watched")
    return _after_a_broker(failure, deployment, "noticed after 2 s; ")


def _after_a_broker(failure: str, deployment: Deployment, begins: str) -> Outcome:
    if deployment.brokers == 1:
        what = "it is restarted within seconds; until then, its stores are unavailable"
        return Outcome(failure, WAITS, begins + what, "serve with --brokers 2")
    if deployment.stores == 1:
        what = "another opens the store within seconds; until then, it is unavailable"
        return Outcome(failure, WAITS, begins + what, "serve with --store twice")
    what = "others take over its stores within seconds; sends go elsewhere or into the journal"
    return Outcome(failure, GOES_ON, begins + what)


def _slow_store(deployment: Deployment) -> Outcome:
    failure = "store slow"
    if deployment.stores == 1:
        what = "every send takes as long as the disk does: there is no other store for a journal"
        return Outcome(failure, WAITS, what, _TWO_DISKS)
    if deployment.disks == 1:
        what = "all stores, and so the journal, are on the slow disk: every send waits"
        return Outcome(failure, WAITS, what, _TWO_DISKS)
    return Outcome(
        failure,
        GOES_ON,
        "sends go elsewhere or, for up to 15 minutes, into the journal of another store",
    )


def _failed_disk(deployment: Deployment) -> Outcome:
    failure = "disk failed"
    mirror = "mirror the disk: messages on a dead disk are lost"
    if deployment.brokers == 0:
        what = "the server stops with exit code 3; everything acknowledged is on that disk"
        return Outcome(failure, STOPS, what, _TWO_DISKS, mirror)
    if deployment.stores == 1 or deployment.disks == 1:
        what = "all stores are down, and are tried again every 10 s until the disk works"
        return Outcome(failure, WAITS, what, _TWO_DISKS, mirror)
    what = "sends go elsewhere or, for up to 15 minutes, into the journal; messages on it wait"
    return Outcome(failure, GOES_ON, what, beyond=mirror)


def _full_disk(deployment: Deployment) -> Outcome:
    failure = "disk full"
    if deployment.stores == 1 or deployment.disks == 1:
        what = "sends are refused until there is room; receiving and settling go on"
        return Outcome(failure, WAITS, what, _TWO_DISKS, "free some space, and monitor it")
    what = "sends go elsewhere or into the journal; receiving and settling go on"
    return Outcome(failure, GOES_ON, what)
