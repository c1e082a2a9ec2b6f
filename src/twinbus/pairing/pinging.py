"""Pings: is the primary back (P-13).

A ping is a message that a send-path has to take like any other and that nobody receives.  A
failed-over entity is pinged until one gets through; when, failover.py says.
"""

import random
from typing import Final

from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.message import wire_names
from twinbus.pairing.classification import Verdict, verdict_of
from twinbus.pairing.core import Pairing
from twinbus.pairing.steps import Flow, SendPing

TIMEOUT_S: Final = 120.0
TIME_TO_LIVE_MS: Final = 1000


def ping_message(chance: random.Random) -> AmqpAnnotatedMessage:
    """Empty; with a session id of its own, so that entities with sessions take it too."""
    return AmqpAnnotatedMessage(
        data_body=b"",
        header={"time_to_live": TIME_TO_LIVE_MS},
        properties={
            "content_type": wire_names.PING_TYPE,
            "group_id": f"{chance.getrandbits(128):032x}",
        },
    )


def ping(pairing: Pairing, entity: str) -> Flow[None]:
    """One ping to an entity that tick() has named."""
    failover = pairing.entity(entity)
    if not failover.ping_started():
        return
    try:
        yield SendPing(failover.entity, ping_message(pairing.chance), TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - whatever it was, the ping did not get through
        policy = pairing.settings.policy
        is_refused = policy == "legacy" and verdict_of(error, policy) is Verdict.RAISE
        failover.ping_failed(error, is_refused)
    except BaseException:
        failover.ping_abandoned()
        raise
    else:
        failover.ping_succeeded(pairing.now())
