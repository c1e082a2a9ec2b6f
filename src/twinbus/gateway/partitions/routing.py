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

from twinbus.entities.commands import (
    AddRule,
    CancelScheduled,
    Command,
    GetSessionState,
    ListPartitions,
    ListRules,
    ListSessions,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    RenewLocks,
    RenewSession,
    ReplaceRule,
    Send,
    SessionCommand,
    SetSessionState,
    Settle,
)
from twinbus.entities.partitions import hash_key
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    SettleRanges,
    Undefer,
)
from twinbus.errors import NotSupported
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.by_number import (
    route_cancel,
    route_receive_deferred,
    route_renew,
    route_settle,
)
from twinbus.gateway.partitions.fan_out import Routes, forward
from twinbus.gateway.partitions.ranges import route_list_partitions, route_settle_ranges
from twinbus.gateway.partitions.rules import route_list_rules, route_rule
from twinbus.gateway.partitions.sends import deal, route_send
from twinbus.gateway.partitions.walks import route_list_sessions, route_peek, route_selection

__all__ = ["Routes", "deal", "route"]


def route(gateway: Routes, entity: Entity, command: Command) -> None:
    """Send a command its way.  A refusal is raised, or comes as the reply."""
    way = _WAYS.get(type(command))
    if way is None:
        raise NotSupported(f"A partitioned entity does not know {type(command).__name__}.")
    way(gateway, entity, command)


def _route_session(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, SessionCommand)
    forward(gateway, entity.parts[hash_key(command.session_id)], command)


_WAYS: Final[dict[type[Command], Callable[[Routes, Entity, Command], None]]] = {
    Send: route_send,
    Settle: route_settle,
    RenewLocks: route_renew,
    ReceiveDeferred: route_receive_deferred,
    CancelScheduled: route_cancel,
    RenewSession: _route_session,
    GetSessionState: _route_session,
    SetSessionState: _route_session,
    ListSessions: route_list_sessions,
    Peek: route_peek,
    Browse: route_selection,
    DeleteMessages: route_selection,
    Undefer: route_selection,
    Resubmit: route_selection,
    ListNumbers: route_selection,
    ListPartitions: route_list_partitions,
    SettleRanges: route_settle_ranges,
    AddRule: route_rule,
    ReplaceRule: route_rule,
    RemoveRule: route_rule,
    ListRules: route_list_rules,
}
