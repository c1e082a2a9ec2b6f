"""The store: entities, the log under them, and the order in which things become true.

    queues state facts ─▶ begin_commit: facts → one frame        (loop thread)
                          Commit.write: checksum, write, sync    (any thread)
                          finish_commit: bodies can be read back (loop thread)

At most one commit is in flight.  Nothing may be acknowledged before its commit is finished.
`next_task` and `finish_task` do the same for background work (`maintenance.py`); both must be
called from the loop thread, `Task.run` from any.

The store never decides anything about a message, and it never hides a failure: after one failed
write or sync every call raises `LogPoisoned`.  Only a restart helps, because it reads back what is
really on disk.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import (
    Activated,
    EntityCreated,
    EntityDeleted,
    Fact,
    FannedOut,
    LastNumber,
    Locked,
    Removed,
    Stored,
    Together,
    gather,
)
from twinbus.entities.message import Message
from twinbus.entities.partitions import shown_name
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.rules import Rule
from twinbus.errors import EntityAlreadyExists, LogPoisoned, StorageError
from twinbus.limits import BODY_CACHE_BYTES, COMMIT_SIZE_BYTES_MAX, SEGMENT_SIZE_BYTES
from twinbus.storage.bodies import BodyCache, read_bodies
from twinbus.storage.disk import Disk
from twinbus.storage.entity_index import RULE, EntityIndex, rule_path
from twinbus.storage.log import Commit, Log, numbered
from twinbus.storage.maintenance import PrepareSegment, Task, spare_name
from twinbus.storage.reclaim import Maintenance
from twinbus.storage.records import encode, kept_bytes
from twinbus.storage.recovery import FRESH_SUFFIX, SPARE_SUFFIX, Recovered, recover
from twinbus.storage.ring import WriteRing
from twinbus.storage.snapshot import snapshot_name

# Locks are handed out before they are durable, so a crash forgets the newest grant numbers.  A new
# start counts on from the time, which is above all of them: a token of before never fits again.
GRANT_BITS: Final = 20
RESERVE_BYTES: Final = 8_388_608  # of a segment that sends leave for settlements


class Store:
    """All entities of one directory."""

    def __init__(self, disk: Disk, log: Log, entities: EntityIndex, cache_bytes: int) -> None:
        self._disk = disk
        self._log = log
        self._known = entities
        self.entities = entities.by_id
        self.rules = entities.rules
        self.names = entities.names
        self.facts = entities.facts
        self.grants = entities.grants
        self._cache = BodyCache(cache_bytes)
        self._in_flight: Commit | None = None
        self._pieces: list[Fact] = []  # of facts[0], when that is too large for one frame
        # Bytes that one command may have written together: they have to fit into one segment.
        # Whoever takes a command keeps to it, by an estimate of messages and copies.  The last
        # quarter is for what comes with them: ids, numbers, removals.
        self.together_size_max = log.capacity() // 4 * 3
        self._reserve = min(RESERVE_BYTES, log.segment_size // 4)
        self._maintenance = Maintenance(disk, log, entities, self._reserve)

    # -- opening and closing ---------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        disk: Disk,
        now: Now,
        salt: int,
        segment_size: int = SEGMENT_SIZE_BYTES,
        cache_bytes: int = BODY_CACHE_BYTES,
    ) -> "Store":
        """Recover what the disk holds, or begin anew with this salt.  The disk is ours from here.

        LogDamaged names the file and the offset; then nothing has been changed.
        """
        try:
            disk.lock()
            found = recover(disk, now)
            if found is None:
                found = _found_new(disk, salt, segment_size)
            log = _open_log(disk, found)
        except OSError as error:
            disk.close()
            raise StorageError(f"the store cannot be opened: {error}") from error
        except StorageError:
            disk.close()
            raise
        grants = found.entities.grants
        grants.next = max(grants.next, now.utc_ms << GRANT_BITS)
        store = cls(disk, log, found.entities, cache_bytes)
        store._maintenance.resume(found, _tidy(disk, found))
        return store

    def close(self) -> None:
        """Give everything back.  Facts that are in no finished commit are lost, as in a crash."""
        try:
            if self._in_flight is not None:
                self._log.abandon()
            self._log.close()
        finally:
            self._disk.close()

    def ring(self) -> WriteRing | None:
        """By which commits can be written beside a loop; None where the disk has no such thing."""
        return self._disk.ring()

    # -- entities --------------------------------------------------------------------------------

    def create_entity(self, kind: str, name: str, description: QueueDescription) -> Queue:
        """A new queue, topic or subscription; the name of a subscription begins with its topic's.

        A subscription has no rules yet: nothing comes into it.
        """
        self._log.check_poison()
        if name.lower() in self.names:
            raise EntityAlreadyExists(f"The entity '{shown_name(name)}' already exists.")
        entity_id = self._known.next_id
        queue = self._known.put(kind, entity_id, name, description)
        self.facts.append(EntityCreated(entity_id, kind, name, description.to_json()))
        return queue

    def update_entity(self, entity_id: int, description: QueueDescription) -> None:
        self._log.check_poison()
        queue = self.entities[entity_id]
        queue.update(description)
        self.facts.append(EntityCreated(entity_id, queue.kind, queue.name, description.to_json()))

    def delete_entities(self, entity_ids: list[int]) -> None:
        """All at once.  A topic takes its subscriptions along, and a subscription its rules.

        Those that are named go in one frame, and on replay they take the others along.  These are
        named afterwards, in as many frames as they need: a topic may have very many rules.
        """
        self._log.check_poison()
        known = self._known
        first = len(self.facts)
        followers: list[Fact] = []
        for entity_id in entity_ids:
            for each in known.drop_family(entity_id):
                if each == entity_id:
                    self.facts.append(EntityDeleted(each))
                else:
                    followers.append(EntityDeleted(each))
        gather(self.facts, first)
        self.facts.extend(followers)

    def create_rule(self, subscription_id: int, description: RuleDescription) -> Rule:
        """One more rule for a subscription.  QuotaExceeded when its topic has too many."""
        self._log.check_poison()
        name = rule_path(self.entities[subscription_id].name, description.name)
        if name.lower() in self.names:
            raise EntityAlreadyExists(f"The rule '{description.name}' already exists.")
        rule_id = self._known.next_id
        rule = self._known.put_rule(rule_id, subscription_id, name, description)
        self.facts.append(EntityCreated(rule_id, RULE, name, description.to_json()))
        return rule

    def delete_rule(self, rule_id: int) -> None:
        self._log.check_poison()
        self._known.drop_family(rule_id)
        self.facts.append(EntityDeleted(rule_id))

    # -- commits ---------------------------------------------------------------------------------

    def room_for(self, size_bytes: int) -> bool:
        """May sends of this many bytes still be taken?  If so, the room is theirs.

        Settlements do not ask: what is left then is theirs.
        """
        log = self._log
        maintenance = self._maintenance
        promised = maintenance.promised + size_bytes
        room = log.end_offset - log.head_offset - promised
        if log.ready_segment != 0 or maintenance.has_next:
            room += log.capacity()
        if room < self._reserve or maintenance.snapshot_room_missing:
            return False
        maintenance.promised = promised
        return True

    def begin_commit(self) -> Commit | None:
        """Put the facts stated so far into one frame; what does not fit waits for the next.

        None when there is nothing to commit, a commit is in flight, or there is no segment to go
        on in; then ask again after the next `finish_commit` or `finish_task`.
        """
        log = self._log
        log.check_poison()
        if not self.facts or self._in_flight is not None:
            return None
        frame_size_max = min(COMMIT_SIZE_BYTES_MAX, log.capacity())
        while True:
            pieces = self._pieces
            draft = Draft()
            left = draft.fill(
                pieces or self.facts, min(frame_size_max, log.room()), log.records_position()
            )
            if draft.count:
                break
            first = pieces[0] if pieces else self.facts[0]
            if left > frame_size_max:
                halves = split_fact(first)
                if halves:
                    self._pieces = halves + pieces[1:]
                elif left <= log.capacity():
                    frame_size_max = left  # a large frame of its own
                else:
                    raise StorageError(
                        f"{left} bytes must be written together, and a segment of the log "
                        f"holds {log.capacity()}"
                    )
            elif log.ready_segment:
                log.rotate()
            else:
                return None
        fact_count = draft.count
        if pieces:  # they count as the one fact they are when the last of them is through
            del pieces[: draft.count]
            fact_count = 0 if pieces else 1
        commit = Commit(log, draft.parts, draft.size, fact_count)
        commit.messages = draft.messages
        commit.published = draft.published
        commit.touched = draft.touched
        commit.kept_bytes = draft.kept_bytes
        del self.facts[:fact_count]
        if not self.facts:
            self._maintenance.promised = 0
        self._maintenance.fact_taken_count += fact_count
        self._in_flight = commit
        return commit

    def finish_commit(self, commit: Commit) -> list[Queue]:
        """The commit was written.  Returns the queues it touched; the caller publishes in them."""
        self._log.check_poison()
        if commit is not self._in_flight:
            raise LogPoisoned("a commit was finished that is not in flight")
        self._in_flight = None
        maintenance = self._maintenance
        maintenance.durable = commit.end
        maintenance.fact_durable_count += commit.fact_count
        maintenance.stored_count += len(commit.messages)
        maintenance.kept_bytes += commit.kept_bytes
        if commit.messages:
            self._cache.add(commit.messages, commit.end.position())
        entities = self.entities
        touched: list[Queue] = []
        for entity_id in commit.touched:
            queue = entities.get(entity_id)
            if queue is not None:
                touched.append(queue)
        return touched

    # -- bodies ----------------------------------------------------------------------------------

    def read_bodies(self, messages: list[Message]) -> list[bytes]:
        """The bodies in the order of the messages.

        For messages that were removed: at the latest in the turn that finishes that commit.
        """
        return read_bodies(self._log, messages)

    # -- background work -------------------------------------------------------------------------

    def next_task(self, now: Now) -> Task | None:
        """Something for the maintenance thread, or None.  One task at a time."""
        self._log.check_poison()
        return self._maintenance.next_task(now)

    @property
    def has_urgent_task(self) -> bool:
        """Whether `next_task` should be asked at once: the log needs a segment to go on in."""
        return self._log.ready_segment == 0 and self._maintenance.is_urgent

    def finish_task(self, task: Task) -> None:
        self._log.check_poison()
        self._maintenance.finish_task(task)


class Draft:
    """A frame being put together, and what its commit will have to do."""

    __slots__ = ("count", "kept_bytes", "messages", "parts", "published", "size", "touched")

    def __init__(self) -> None:
        self.kept_bytes = 0
        self.parts: list[bytes] = []
        self.size = 0
        self.count = 0  # facts in it
        self.messages: list[Message] = []
        self.published: dict[int, int] = {}
        self.touched: dict[int, bool] = {}

    def fill(self, facts: list[Fact], room: int, position: int) -> int:
        """Encode facts as long as they fit; returns the size of the first that did not."""
        parts = self.parts
        messages = self.messages
        published = self.published
        touched = self.touched
        size = 0
        count = 0
        left = 0
        for fact in facts:
            mark = len(parts)
            written = encode(fact, parts, position + size)
            if size + written > room:
                del parts[mark:]
                unplace(fact)
                left = written
                break
            size += written
            count += 1
            entity_id = fact.entity_id
            if isinstance(fact, Stored):
                messages.extend(fact.messages)
                number = fact.messages[-1].sequence_number
                # A message that only moves in the log has an old number; those are behind us.
                if number > published.get(entity_id, 0):
                    published[entity_id] = number
            elif not isinstance(fact, Removed) and not isinstance(fact, Locked):
                self._note(fact)
                continue
            touched[entity_id] = True
        self.size = size
        self.count = count
        return left

    def _note(self, fact: Fact) -> None:
        """What the commit of a fact will have to do; `fill` knows the most frequent ones itself."""
        if isinstance(fact, Together):
            for each in fact.facts:
                self._note(each)
            return
        self.touched[fact.entity_id] = True
        if isinstance(fact, Stored):
            self.messages.extend(fact.messages)
            self._publish(fact.entity_id, fact.messages[-1].sequence_number)
        elif isinstance(fact, Activated):
            self._publish(fact.entity_id, fact.new_sequence_number)
        elif isinstance(fact, LastNumber):
            self._publish(fact.entity_id, fact.sequence_number)
        elif isinstance(fact, FannedOut):
            self._publish(fact.entity_id, fact.sequence_number)
            self.messages.extend(fact.messages)
            for subscription_id, message in zip(fact.subscription_ids, fact.messages, strict=True):
                self.touched[subscription_id] = True
                self._publish(subscription_id, message.sequence_number)
        else:
            self.kept_bytes += kept_bytes(fact)

    def _publish(self, entity_id: int, number: int) -> None:
        if number > self.published.get(entity_id, 0):
            self.published[entity_id] = number


def unplace(fact: Fact) -> None:
    """The fact did not go into the frame after all: its bodies lie nowhere yet."""
    if isinstance(fact, Stored | FannedOut):
        for message in fact.messages:
            message.position = 0
    elif isinstance(fact, Together):
        for each in fact.facts:
            unplace(each)


def split_fact(fact: Fact) -> list[Fact]:
    """Two halves that together say the same; none of a fact that cannot be divided."""
    if isinstance(fact, Stored) and len(fact.messages) > 1:
        half = len(fact.messages) // 2
        return [
            Stored(fact.entity_id, fact.subqueue, fact.messages[:half]),
            Stored(fact.entity_id, fact.subqueue, fact.messages[half:]),
        ]
    if isinstance(fact, Removed) and len(fact.sequence_numbers) > 1:
        half = len(fact.sequence_numbers) // 2
        return [
            Removed(fact.entity_id, fact.subqueue, fact.sequence_numbers[:half]),
            Removed(fact.entity_id, fact.subqueue, fact.sequence_numbers[half:]),
        ]
    if isinstance(fact, Locked) and len(fact.sequence_numbers) > 1:
        half = len(fact.sequence_numbers) // 2
        numbers, grant = fact.sequence_numbers, fact.first_grant
        return [
            Locked(fact.entity_id, fact.subqueue, grant, numbers[:half]),
            Locked(fact.entity_id, fact.subqueue, grant + half, numbers[half:]),
        ]
    return []


# --- opening ----------------------------------------------------------------------------------


def _found_new(disk: Disk, salt: int, segment_size: int) -> Recovered:
    """A store with one empty segment."""
    found = Recovered()
    found.salt = salt
    found.segment_size = segment_size
    found.segments = [1]
    first = PrepareSegment(disk, 1, salt, segment_size, 0)
    first.run()
    if first.full:
        raise StorageError(f"the disk has no room for a segment of {segment_size} bytes")
    return found


def _open_log(disk: Disk, found: Recovered) -> Log:
    log = Log(disk, found.salt, found.segment_size)
    for number in found.segments:
        log.segments[number] = True
    log.ready_segment = found.ready_segment
    end = found.end
    log.start(end.segment, end.offset, end.frame)
    # What we have read may have been in the kernel's memory only: a process that was killed
    # leaves such frames.  Nobody may hear of them before they are durable.
    log.head_file.sync()
    disk.sync_directory()
    return log


def _tidy(disk: Disk, found: Recovered) -> list[int]:
    """Remove what an interrupted task left; returns the spare segments."""
    for number in found.old_snapshots:
        disk.remove(snapshot_name(number))
    names = disk.names()
    for number in numbered(names, FRESH_SUFFIX):
        disk.remove(f"{number:010d}{FRESH_SUFFIX}")
    spares = []
    for number in numbered(names, SPARE_SUFFIX):
        if disk.size(spare_name(number)) == found.segment_size:
            spares.append(number)
        else:
            disk.remove(spare_name(number))
    return spares
