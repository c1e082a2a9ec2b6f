"""Where a command to a partitioned entity goes: each type has its way.

    Send                                         by key, or round robin (sends.py)
    Settle, RenewLocks, ReceiveDeferred,         the partition is in the sequence number
        CancelScheduled                              (by_number.py)
    RenewSession, Get- and SetSessionState       the partition of the session id
    Peek, Browse, DeleteMessages, Undefer,       partition after partition, or all of them
        Resubmit, ListNumbers, ListSessions          (walks.py)
    ListPartitions, SettleRanges                 all at once (ranges.py)
    AddRule, ReplaceRule, RemoveRule, ListRules  all partitions, or any (rules.py)

Everything is decided from what is at hand: this must never wait, and keeps no state but in gathers
that are under way (fan_out.py).
"""

from collections.abc import Callable
from typing import Final

from twinbus.entities import commands, selections
from twinbus.entities.partitions import hash_key
from twinbus.errors import NotSupported
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.by_number import (
    route_cancel,
    route_receive_deferred,
    route_renew,
    route_settle,
)
from twinbus.gateway.partitions.fan_out import Routes, forward
from twinbus.gateway.partitions.peeking import route_peek
from twinbus.gateway.partitions.ranges import route_list_partitions, route_settle_ranges
from twinbus.gateway.partitions.rules import route_list_rules, route_rule
from twinbus.gateway.partitions.sends import deal, route_send
from twinbus.gateway.partitions.walks import route_list_sessions, route_selection

__all__ = ["Routes", "deal", "route"]


def route(gateway: Routes, entity: Entity, command: commands.Command) -> None:
    """Send a command its way.  A refusal is raised, or comes as the reply."""
    way = _WAYS.get(type(command))
    if way is None:
        raise NotSupported(f"A partitioned entity does not know {type(command).__name__}.")
    way(gateway, entity, command)


def _route_session(gateway: Routes, entity: Entity, command: commands.Command) -> None:
    assert isinstance(command, commands.SessionCommand)
    forward(gateway, entity.parts[hash_key(command.session_id)], command)


_WAYS: Final[dict[type[commands.Command], Callable[[Routes, Entity, commands.Command], None]]] = {
    commands.Send: route_send,
    commands.Settle: route_settle,
    commands.RenewLocks: route_renew,
    commands.ReceiveDeferred: route_receive_deferred,
    commands.CancelScheduled: route_cancel,
    commands.RenewSession: _route_session,
    commands.GetSessionState: _route_session,
    commands.SetSessionState: _route_session,
    commands.ListSessions: route_list_sessions,
    commands.Peek: route_peek,
    selections.Browse: route_selection,
    selections.DeleteMessages: route_selection,
    selections.Undefer: route_selection,
    selections.Resubmit: route_selection,
    selections.ListNumbers: route_selection,
    commands.ListPartitions: route_list_partitions,
    selections.SettleRanges: route_settle_ranges,
    commands.AddRule: route_rule,
    commands.ReplaceRule: route_rule,
    commands.RemoveRule: route_rule,
    commands.ListRules: route_list_rules,
}
