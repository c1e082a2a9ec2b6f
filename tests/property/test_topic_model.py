"""A topic against a naive model, with restarts.

The model keeps, for each subscription, a list of what must be in it, and asks every rule about
every message one by one, in plain Python.  It shares nothing with the topic: no index, no shared
bodies, no facts.  After every step all subscriptions must hold the same messages in the same order,
in their dead-letter queues too, each with the number that the topic gave it.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.broker.actions import answer, arrived, by_subject, found, send, sql
from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import content, new
from twinbus.entities.commands import AddRule, CancelScheduled, RemoveRule
from twinbus.entities.descriptions import SubscriptionDescription
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.message import NEVER_MS
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.testing.disk import CrashMode

pytestmark = pytest.mark.proves("M-3", "M-6")

SUBJECTS = ("red", "blue")
NUMBERS = (0, 1, 5)
LIVES = (NEVER_MS, 20_000)
# Kinds of rules: what the topic is told, and what the model thinks of it.
KINDS = ("all", "none", "red", "blue", "high", "failing", "tagging", "red tagging")


@dataclass
class Letter:
    """One message of the model."""

    body: bytes
    subject: str
    number: int
    life_ms: int
    topic_number: int = 0
    is_tagged: bool = False
    expires_ms: int = NEVER_MS


@dataclass
class Box:
    """One subscription of the model."""

    name: str
    life_ms: int
    keeps_failures: bool
    rules: dict[str, str] = field(default_factory=dict)  # name → kind
    main: list[Letter] = field(default_factory=list)
    dead: list[Letter] = field(default_factory=list)


def description_of(name: str, kind: str) -> RuleDescription:
    if kind in SUBJECTS:
        return by_subject(kind, name)
    expressions = {
        "all": "1 = 1",
        "none": "1 = 0",
        "high": "number > 2",
        "failing": "10 / number > 5",
        "tagging": "1 = 1",
        "red tagging": "sys.Label = 'red'",
    }
    action = "SET tag = 'x'" if kind.endswith("tagging") else ""
    return sql(expressions[kind], action, name)


def verdict(kind: str, letter: Letter) -> str:
    """What a rule says about a message: plain, tagged, failed or nothing."""
    if kind == "failing" and letter.number == 0:
        return "failed"
    matches = {
        "all": True,
        "none": False,
        "red": letter.subject == "red",
        "blue": letter.subject == "blue",
        "high": letter.number > 2,
        "failing": letter.number == 1,  # 10 / 5 is 2
        "tagging": True,
        "red tagging": letter.subject == "red",
    }[kind]
    if not matches:
        return ""
    return "tagged" if kind.endswith("tagging") else "plain"


class TopicMachine(RuleBasedStateMachine):
    """Does the same to a topic and to the model."""

    @initialize(
        lives=st.lists(st.sampled_from(LIVES), min_size=3, max_size=3),
        keeps=st.lists(st.booleans(), min_size=3, max_size=3),
        kinds=st.lists(st.sampled_from(KINDS), min_size=3, max_size=3),
    )
    def create(self, lives: list[int], keeps: list[bool], kinds: list[str]) -> None:
        self.bench = BrokerHarness()
        self.random = random.Random(1)
        self.counted = 0
        self.topic_number = 0
        self.boxes: list[Box] = []
        self.waiting: list[tuple[int, int, Letter]] = []  # due, number, message
        topic = self.bench.create_topic()
        for index in range(3):
            box = Box(f"s{index}", lives[index], keeps[index])
            box.rules["first"] = kinds[index]
            description = SubscriptionDescription(
                default_time_to_live_ms=lives[index],
                dead_lettering_on_filter_evaluation_exceptions=keeps[index],
            )
            first = description_of("first", kinds[index])
            self.bench.create_subscription(topic, box.name, description, first)
            self.boxes.append(box)

    def topic(self) -> Queue:
        return found(self.bench, "news")

    def queue(self, box: Box) -> Queue:
        return found(self.bench, f"news/Subscriptions/{box.name}")

    def utc_ms(self) -> int:
        return self.bench.clock.now().utc_ms

    # -- what the model does -----------------------------------------------------------------------

    def letter(self, subject: str, number: int, life_ms: int) -> Letter:
        self.counted += 1
        return Letter(b"%d" % self.counted, subject, number, life_ms)

    def fan_out(self, letter: Letter) -> None:
        self.topic_number += 1
        for box in self.boxes:
            verdicts = [verdict(kind, letter) for kind in box.rules.values()]
            copies = [False] * ("plain" in verdicts) + [True] * verdicts.count("tagged")
            for is_tagged in copies:
                box.main.append(self.copy(letter, box, is_tagged))
            if "failed" in verdicts and box.keeps_failures:
                box.dead.append(self.copy(letter, box, False))

    def copy(self, letter: Letter, box: Box, is_tagged: bool) -> Letter:
        life_ms = min(letter.life_ms, box.life_ms)
        expires_ms = NEVER_MS if life_ms == NEVER_MS else self.utc_ms() + life_ms
        return Letter(
            letter.body,
            letter.subject,
            letter.number,
            life_ms,
            self.topic_number,
            is_tagged,
            expires_ms,
        )

    # -- what happens to both ----------------------------------------------------------------------

    @rule(
        letters=st.lists(
            st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(NUMBERS), st.sampled_from(LIVES)),
            min_size=1,
            max_size=3,
        )
    )
    def send(self, letters: list[tuple[str, int, int]]) -> None:
        made = [self.letter(*each) for each in letters]
        messages = [
            new(each.body, each.subject, time_to_live_ms=each.life_ms, number=each.number)
            for each in made
        ]
        numbers = send(self.bench, self.topic(), *messages)
        for each in made:
            self.fan_out(each)
        first = self.topic_number - len(made) + 1
        assert numbers == list(range(first, self.topic_number + 1))

    @rule(
        subject=st.sampled_from(SUBJECTS),
        number=st.sampled_from(NUMBERS),
        life_ms=st.sampled_from(LIVES),
        delay_ms=st.sampled_from((1, 3_000, 9_000)),
    )
    def schedule(self, subject: str, number: int, life_ms: int, delay_ms: int) -> None:
        letter = self.letter(subject, number, life_ms)
        due_ms = self.utc_ms() + delay_ms
        message = new(letter.body, subject, None, life_ms, due_ms, number=number)
        self.topic_number += 1
        assert send(self.bench, self.topic(), message) == [self.topic_number]
        self.waiting.append((due_ms, self.topic_number, letter))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(entry)
        answer(self.bench, CancelScheduled(self.topic().entity_id, [entry[1]]))

    @rule(duration_ms=st.sampled_from((1_000, 6_000)))
    def wait(self, duration_ms: int) -> None:
        """Everything that is due comes out in the order of its time, then of its number."""
        end_ms = self.utc_ms() + duration_ms
        while self.waiting and min(self.waiting)[0] <= end_ms:
            entry = min(self.waiting)
            self.waiting.remove(entry)
            self.bench.pass_time(max(0, entry[0] - self.utc_ms()))
            self.fan_out(entry[2])
        self.bench.pass_time(max(0, end_ms - self.utc_ms()))

    @rule(index=st.integers(0, 2), name=st.sampled_from("abc"), kind=st.sampled_from(KINDS))
    def add_rule(self, index: int, name: str, kind: str) -> None:
        box = self.boxes[index]
        if name not in box.rules:
            box.rules[name] = kind
            answer(self.bench, AddRule(self.queue(box).entity_id, description_of(name, kind)))

    @rule(index=st.integers(0, 2), data=st.data())
    def remove_rule(self, index: int, data: st.DataObject) -> None:
        box = self.boxes[index]
        if box.rules:
            name = data.draw(st.sampled_from(sorted(box.rules)))
            del box.rules[name]
            answer(self.bench, RemoveRule(self.queue(box).entity_id, name.upper()))

    @rule(index=st.integers(0, 2), subqueue=st.sampled_from((MAIN, DEAD_LETTER)))
    def receive_all(self, index: int, subqueue: int) -> None:
        box = self.boxes[index]
        self.forget_expired(box)
        letters = box.main if subqueue == MAIN else box.dead
        assert arrived(self.bench, self.queue(box), subqueue) == [each.body for each in letters]
        letters.clear()

    @rule(mode=st.sampled_from((CrashMode.DROP, CrashMode.KEEP)))
    def restart(self, mode: CrashMode) -> None:
        disk = self.bench.disk.after_power_cut(self.random, mode)
        self.bench = BrokerHarness(disk, self.bench.clock)
        self.bench.run()

    # -- what must hold ----------------------------------------------------------------------------

    def forget_expired(self, box: Box) -> None:
        now_ms = self.utc_ms()
        box.main = [each for each in box.main if each.expires_ms > now_ms]

    @invariant()
    def both_are_the_same(self) -> None:
        for box in self.boxes:
            self.forget_expired(box)
            queue = self.queue(box)
            assert self.seen(queue, MAIN) == [summary(each) for each in box.main]
            assert self.seen(queue, DEAD_LETTER) == [summary(each) for each in box.dead]
        assert self.topic().counts().scheduled == len(self.waiting)

    def seen(self, queue: Queue, subqueue: int) -> list[tuple[bytes, int, bool]]:
        now_ms = self.utc_ms()
        messages = [
            message
            for message in queue.messages_from(subqueue, 1, 1_000)
            if subqueue != MAIN or message.expires_ms > now_ms
        ]
        bodies = self.bench.store.read_bodies(messages)
        result: list[tuple[bytes, int, bool]] = []
        for message, body in zip(messages, bodies, strict=True):
            overlay = message.overlay
            number = 0 if overlay is None else overlay.enqueued_sequence_number
            tagged = b"\xa1\x03tag" in body
            result.append((content(body), number or message.sequence_number, tagged))
        return result


def summary(letter: Letter) -> tuple[bytes, int, bool]:
    return (letter.body, letter.topic_number, letter.is_tagged)


TopicMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTopicAgainstModel = TopicMachine.TestCase
