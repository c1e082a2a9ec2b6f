"""Setting up a pair: clients of the secondary, and its backlog queues (P-1, P-4, P-5).

Nothing here outlives the setting up, except the client that was asked for.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.pairing.backlog_queues import REQUEST_S_MAX, find_old, find_or_create
from twinbus.pairing.blocking._running import run
from twinbus.pairing.blocking._steady import Closing, SteadySender
from twinbus.pairing.client import SETUP_S_MAX
from twinbus.pairing.core import Pairing
from twinbus.pairing.fitness import FoundQueues, open_one
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions, clients_of, without_tls
from twinbus.pairing.primary import Primary
from twinbus.pairing.steps import CreateQueue, Flow, ListQueues, OpenBacklog, Pause, Step

T = TypeVar("T")

PATIENCE: Final[Any] = {"connection_timeout": REQUEST_S_MAX, "read_timeout": REQUEST_S_MAX}


class PlainTransport(RequestsTransport):  # type: ignore[misc]  # found at run time only
    def send(self, request: Any, **options: Any) -> Any:
        return super().send(without_tls(request), **options)


def open_secondary(
    options: SendAvailabilityPairedNamespaceOptions, opened: ExitStack
) -> tuple[ServiceBusAdministrationClient, ServiceBusClient]:
    """The options' own clients, or new ones, which are put on the stack."""
    kinds = (ServiceBusAdministrationClient, ServiceBusClient)
    hint = "blocking clients; for those of azure.servicebus.aio there is twinbus.pairing.aio"
    return clients_of(options, kinds, hint, PlainTransport, opened.callback)


def find_backlog_queues(
    manager: ServiceBusAdministrationClient, primary_name: str, count: int
) -> FoundQueues:
    """All of them are there then, and at least one can serve."""
    return _run(manager, find_or_create(primary_name, count))


def find_old_queues(manager: ServiceBusAdministrationClient, primary: Primary) -> list[str]:
    """Those of older versions, which the syphon empties as well."""
    return _run(manager, find_old(primary))


def _run(manager: ServiceBusAdministrationClient, flow: Flow[T]) -> T:
    # There is no pair yet that anybody could share, and nothing to tell of it.
    return run(flow, partial(_perform, manager), threading.Lock(), _tell_nobody)


def _perform(manager: ServiceBusAdministrationClient, step: Step) -> Any:
    match step:
        case ListQueues():
            return list(manager.list_queues(**PATIENCE))
        case CreateQueue(queue, settings):
            return manager.create_queue(queue, **PATIENCE, **settings)
        case Pause(seconds):
            return time.sleep(seconds)
        case _:
            raise AssertionError(f"no step of setting up: {step}")


def open_backlog(
    pairing: Pairing, get_sender: Callable[[str], ServiceBusSender], closing: Closing
) -> int:
    """Shows that some backlog queue can be sent to; the largest batch that it takes."""

    def perform(step: Step) -> int:
        assert isinstance(step, OpenBacklog), f"no step of setting up: {step}"
        link = SteadySender(lambda: get_sender(step.queue), closing)
        try:
            return link.batch_bytes(step.timeout_s)
        finally:
            link.begin_close()

    return run(open_one(pairing, SETUP_S_MAX), perform, threading.Lock(), _tell_nobody)


def _tell_nobody() -> None: ...
