"""Rules of a partitioned topic's subscription: in every partition the same ones (E-13).

A change is made only while all partitions are there.  If one of them refuses it even so, it is
taken back in the others:

    AddRule       ─▶ all ─▶ one failed ─▶ RemoveRule where it was added
    RemoveRule    ─▶ what is the rule? ─▶ all ─▶ one failed ─▶ AddRule where it was removed
    ReplaceRule   ─▶ what is the rule? ─▶ all ─▶ one failed ─▶ ReplaceRule with the old one

A store that is lost in the middle may be left with the change or without it; the error says so, and
removing the rule makes the partitions the same again: where it is not there, that is no error.
"""

from typing import Final

from twinbus.entities.commands import AddRule, Command, ListRules, RemoveRule, ReplaceRule, Reply
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.errors import EntityNotFound, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.fan_out import (
    Gather,
    Routes,
    first_error,
    forward,
    partitions_up,
    shown,
)
from twinbus.links.store_link import DOWN

_PAGE_COUNT: Final = 500  # rules looked at in one go

# What a change is waiting for.
_OLD_RULE: Final = 0
_CHANGE: Final = 1
_UNDO: Final = 2


def route_list_rules(gateway: Routes, entity: Entity, command: Command) -> None:
    """All partitions have the same rules: any can say which."""
    forward(gateway, entity.parts[partitions_up(gateway, entity)[0]], command)


def route_rule(gateway: Routes, entity: Entity, command: Command) -> None:
    for part in entity.parts:
        if gateway.links[part.store].health == DOWN:
            raise Unavailable(
                f"Partition {part.partition} of '{shown(entity)}' is down, and rules are changed "
                "in all partitions or in none. Nothing was changed: try again later."
            )
    _RuleChange(gateway, entity, command).start()


class _RuleChange(Gather):
    """One rule is added, removed or replaced everywhere or nowhere."""

    __slots__ = ("_error", "_name", "_old", "_skip", "_step")

    def __init__(self, gateway: Routes, entity: Entity, command: Command) -> None:
        super().__init__(gateway, entity, command)
        self._step = _OLD_RULE
        self._skip = 0
        self._name = ""
        self._old: RuleDescription | None = None
        self._error: ServiceError | None = None

    def start(self) -> None:
        command = self.command
        if isinstance(command, RemoveRule):
            self._name = command.name.lower()
        elif isinstance(command, ReplaceRule):
            self._name = command.description.name.lower()
        else:
            self._change()
            return
        self._look()

    def gathered(self, replies: list[Reply]) -> None:
        if self._step == _OLD_RULE:
            self._looked(replies[0])
        elif self._step == _CHANGE:
            self._changed(replies)
        else:
            self._undone(replies)

    # -- the rule as it was ----------------------------------------------------------------------

    def _look(self) -> None:
        self.ask(0, ListRules(0, self._skip, _PAGE_COUNT))
        self.begin()

    def _looked(self, reply: Reply) -> None:
        if reply.error is not None:
            self.answer(None, reply.error)
            return
        rules = reply.result
        assert isinstance(rules, list)
        for rule in rules:
            if rule.name.lower() == self._name:
                self._old = rule
        if self._old is None and len(rules) == _PAGE_COUNT:
            self._skip += _PAGE_COUNT
            self._look()
        elif self._old is None and isinstance(self.command, ReplaceRule):
            forward(self.gateway, self.entity.parts[0], self.command)  # it says what is missing
        else:
            self._change()

    # -- the change ------------------------------------------------------------------------------

    def _change(self) -> None:
        self._step = _CHANGE
        for partition in range(PARTITION_COUNT):
            self.ask(partition, _again(self.command))
        self.begin()

    def _changed(self, replies: list[Reply]) -> None:
        done = [index for index, reply in enumerate(replies) if reply.error is None]
        error = first_error(replies)
        if done and isinstance(self.command, RemoveRule):
            error = first_error([each for each in replies if not _is_missing(each)])
        if error is None:
            self.answer(None)
        elif not done:
            self.answer(None, error)
        else:
            self._error = error
            self._undo(done)

    def _undo(self, partitions: list[int]) -> None:
        self._step = _UNDO
        opposite = self._opposite()
        if opposite is None:
            self._undone([])
            return
        for partition in partitions:
            self.ask(partition, _again(opposite))
        self.begin()

    def _opposite(self) -> Command | None:
        """What takes the change back; None if nobody knows how the rule was."""
        command, old = self.command, self._old
        if isinstance(command, AddRule):
            return RemoveRule(0, command.description.name)
        if old is None:
            return None  # only some partitions had it: it had been left there
        return AddRule(0, old) if isinstance(command, RemoveRule) else ReplaceRule(0, old)

    def _undone(self, replies: list[Reply]) -> None:
        error = self._error
        assert error is not None
        if first_error(replies) is not None or isinstance(error, Unavailable):
            error = Unavailable(
                f"{error} Some partitions of '{shown(self.entity)}' may have been left with the "
                "change and others without: when all are up, remove the rule and add it again."
            )
        self.answer(None, error)


def _again(command: Command) -> Command:
    """The same change, for one more partition."""
    if isinstance(command, AddRule):
        return AddRule(0, command.description)
    if isinstance(command, ReplaceRule):
        return ReplaceRule(0, command.description)
    assert isinstance(command, RemoveRule)
    return RemoveRule(0, command.name)


def _is_missing(reply: Reply) -> bool:
    """Was there no such rule?"""
    return isinstance(reply.error, EntityNotFound)
