"""Makes stores and catalog agree, and updates the directory.

Runs at start, before the first client is served, and whenever a store comes up late.
reconcile_plan.py decides what to do; this module does it, store by store.  If a store is lost in
the middle, it raises Unavailable, leaves the catalog alone, and the next run does the rest: each
step can be repeated.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from twinbus.entities.catalog_entry import CatalogEntry
from twinbus.entities.commands import (
    AddRule,
    CreateEntities,
    DeleteEntities,
    Listed,
    ListEntities,
    ListRules,
    UpdateEntities,
)
from twinbus.entities.rule_descriptions import RuleDescription, default_rule
from twinbus.errors import Unavailable
from twinbus.gateway.directory.directory import Directory, Part
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.change_lock import ChangeLock
from twinbus.gateway.namespaces.reconcile_plan import Make, Plan, reconcile
from twinbus.links.request import ask
from twinbus.links.store_link import DOWN

_PAGE_COUNT: Final = 500  # rules asked for in one go


class WrittenCatalog(Protocol):
    """The catalog on its disk (storage/catalog.py)."""

    @property
    def entries(self) -> Mapping[str, CatalogEntry]: ...

    def put_right(self, changed: Iterable[CatalogEntry], gone: Iterable[str]) -> None: ...


async def restore(gateway: Gateway, catalog: WrittenCatalog, lock: ChangeLock) -> list[str]:
    """Put everything right that can be, with the stores that are up; returns what to warn of."""
    async with lock.alone():
        plan = reconcile(catalog.entries, await _listings(gateway), len(gateway.links))
        try:
            await _carry_out(gateway, plan)
            entries = plan.entries()
            if entries or plan.gone:
                catalog.put_right(entries, plan.gone)
        finally:  # what is known is known, though it may not be whole yet
            _learn(gateway.directory, plan)
    return plan.warnings


async def _listings(gateway: Gateway) -> dict[int, list[Listed]]:
    listings: dict[int, list[Listed]] = {}
    for store, link in enumerate(gateway.links):
        if link.health != DOWN:
            with contextlib.suppress(Unavailable):  # it is down now
                listings[store] = await ask(link, ListEntities())
    return listings


async def _carry_out(gateway: Gateway, plan: Plan) -> None:
    await _delete(gateway, plan)
    for make in plan.makes:
        await _make(gateway, make)
    for update in plan.updates:
        link = gateway.links[update.part.store]
        await ask(link, UpdateEntities([update.part.entity_id], update.description))


async def _delete(gateway: Gateway, plan: Plan) -> None:
    by_store: dict[int, list[int]] = {}
    for part in plan.deletes:
        by_store.setdefault(part.store, []).append(part.entity_id)
    for store, entity_ids in by_store.items():
        await ask(gateway.links[store], DeleteEntities(entity_ids))


async def _make(gateway: Gateway, make: Make) -> None:
    """A part that was lost; a subscription's has the rules that another part still has."""
    rules: list[RuleDescription] = []
    if make.rules_from is not None:
        rules = await _rules(gateway, make.rules_from)
        make.new.rule = rules[0] if rules else None
    elif make.new.kind == "subscription":
        make.new.rule = default_rule()
    link = gateway.links[make.part.store]
    (make.part.entity_id,) = await ask(link, CreateEntities([make.new]))
    for rule in rules[1:]:
        await ask(link, AddRule(make.part.entity_id, rule))


async def _rules(gateway: Gateway, part: Part) -> list[RuleDescription]:
    rules: list[RuleDescription] = []
    link = gateway.links[part.store]
    while True:
        page = await ask(link, ListRules(part.entity_id, len(rules), _PAGE_COUNT))
        rules += page
        if len(page) < _PAGE_COUNT:
            return rules


def _learn(directory: Directory, plan: Plan) -> None:
    """The directory has what is known.  Where all parts are still the same, an entity stays."""
    for known in plan.known:
        entity = directory.find(known.name)
        if entity is not None:
            if list(map(_place, entity.parts)) == list(map(_place, known.parts)):
                if entity.description != known.description:
                    directory.describe(entity, known.description)
                continue
            directory.remove(entity)
        directory.add(known.kind, known.name, known.description, known.parts)
    for name in plan.gone:
        entity = directory.find(name)
        if entity is not None:
            directory.remove(entity)


def _place(part: Part) -> tuple[int, int]:
    return part.store, part.entity_id
