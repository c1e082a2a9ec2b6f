"""What there is to see of a running server: the parts that reports and the page ask."""

from typing import NamedTuple

from twinbus.gateway.gateway import Gateway
from twinbus.gateway.health.health import HealthSource
from twinbus.gateway.health.survival import Deployment
from twinbus.gateway.namespaces.entity_changes import EntityChanges
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.gateway.throttling.throttle import Throttle, Usage


class RunningServer(NamedTuple):
    """Its parts."""

    source: HealthSource
    gateway: Gateway
    changes: EntityChanges
    namespaces: Namespaces
    throttle: Throttle
    usage: Usage
    deployment: Deployment
