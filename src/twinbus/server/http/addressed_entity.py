"""What a request about messages is about."""

from typing import NamedTuple

from twinbus.gateway.counting.counters import EntityMeter
from twinbus.gateway.directory.addresses import Address
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.namespace import Namespace


class AddressedEntity(NamedTuple):
    """An entity, or the dead-letter queue of one, and the way to it."""

    gateway: Gateway
    entity: Entity
    address: Address
    meter: EntityMeter


def find_addressed(namespace: Namespace, address: Address) -> AddressedEntity:
    entity = namespace.find_entity(address.name)
    meter = namespace.meter_of(entity, address.subqueue)
    return AddressedEntity(namespace.gateway, entity, address, meter)
