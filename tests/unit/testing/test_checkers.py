"""The judge is judged: hand-written histories, one for each promise that can be broken."""

import pytest

from twinbus.clock import Now
from twinbus.testing.checkers import History, Operation, Phase, Report, check

BODY = b"forty-two"
LOCK_MS = 5_000


class HandClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now(self) -> Now:
        return Now(self.ms, self.ms)


class Story:
    """Writes the history of one queue, a millisecond a line."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.history = History(self.clock)

    def send(self, key: str, end: Phase | None = Phase.OK) -> None:
        self.clock.ms += 1
        note = self.history.note
        note("sender", "q", key, Operation.SEND, Phase.INVOKE, body=BODY)
        if end is not None:
            note("sender", "q", key, Operation.SEND, end)

    def deliver(
        self,
        key: str,
        *,
        process: str = "receiver",
        number: int = 1,
        count: int = 0,
        body: bytes = BODY,
        locked: bool = True,
        began_ms: int = 0,
    ) -> None:
        self.clock.ms += 1
        began_ms = began_ms or self.clock.ms
        self.history.delivered(
            process,
            "q",
            key,
            body=body,
            sequence_number=number,
            delivery_count=count,
            locked_from_ms=began_ms if locked else 0,
            locked_until_ms=began_ms + LOCK_MS if locked else 0,
        )

    def settle(
        self,
        key: str,
        operation: Operation = Operation.COMPLETE,
        end: Phase | None = Phase.OK,
        process: str = "receiver",
    ) -> None:
        self.clock.ms += 1
        self.history.note(process, "q", key, operation, Phase.INVOKE)
        if end is not None:
            self.clock.ms += 1
            self.history.note(process, "q", key, operation, end)

    def judge(self, *, drained: bool = True) -> Report:
        return check(self.history, drained=drained)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_message_sent_received_and_completed_breaks_nothing(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.settle("a")
    report = story.judge()
    assert report.violations == {}
    assert (report.acknowledged_count, report.completed_count) == (1, 1)
    assert str(report) == "1 acknowledged, 1 completed, 0 recovered, 0 duplicated"


def test_an_acknowledged_message_that_never_comes_is_lost(story: Story) -> None:
    story.send("a")
    assert story.judge().violations == {"lost": ["a"]}
    assert "1 lost (e.g. a)" in str(story.judge())


def test_without_draining_nothing_counts_as_lost(story: Story) -> None:
    story.send("a")
    assert story.judge(drained=False).violations == {}


@pytest.mark.parametrize("end", [Phase.FAIL, Phase.INFO, None])
def test_only_acknowledged_messages_can_be_lost(story: Story, end: Phase | None) -> None:
    story.send("a", end)
    assert story.judge().violations == {}


@pytest.mark.parametrize("end, lost", [(Phase.FAIL, ["a"]), (Phase.INFO, [])])
def test_a_delivery_alone_does_not_account_for_a_message(
    story: Story, end: Phase, lost: list[str]
) -> None:
    """A refused complete leaves the message with the server; an unknown one may have taken it."""
    story.send("a")
    story.deliver("a")
    story.settle("a", end=end)
    assert story.judge().lost == lost


def test_a_message_received_and_deleted_is_accounted_for(story: Story) -> None:
    story.send("a")
    story.deliver("a", locked=False)
    assert story.judge().violations == {}


@pytest.mark.parametrize("end", [Phase.INFO, None])
def test_an_unknown_send_that_arrives_is_recovered(story: Story, end: Phase | None) -> None:
    story.send("a", end)
    story.deliver("a")
    story.settle("a")
    report = story.judge()
    assert report.violations == {}
    assert report.recovered == ["a"]


def test_a_message_nobody_sent_is_unexpected(story: Story) -> None:
    story.deliver("a")
    story.settle("a")
    assert story.judge().violations == {"unexpected": ["a"]}


def test_a_refused_message_that_arrives_is_unexpected(story: Story) -> None:
    story.send("a", Phase.FAIL)
    story.deliver("a")
    assert story.judge().violations == {"unexpected": ["a"]}


def test_a_message_under_two_sequence_numbers_is_duplicated_but_allowed(story: Story) -> None:
    story.send("a")
    story.deliver("a", number=1)
    story.clock.ms += LOCK_MS
    story.deliver("a", number=2)
    story.settle("a")
    report = story.judge()
    assert report.duplicated == ["a"]
    assert report.violations == {}


def test_a_changed_body_is_mutated(story: Story) -> None:
    story.send("a")
    story.deliver("a", body=b"forty-three")
    story.settle("a")
    assert story.judge().violations == {"mutated": ["a"]}


def test_a_delivery_that_begins_after_a_confirmed_complete_is_resurrected(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.settle("a")
    story.history.server_ended()
    story.deliver("a")
    assert story.judge().violations == {"resurrected": ["a"]}


def test_a_delivery_on_its_way_before_the_complete_is_not_resurrected(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.clock.ms += LOCK_MS
    sent_again_ms = story.clock.ms + 1
    story.settle("a")
    story.deliver("a", process="other", began_ms=sent_again_ms)
    assert story.judge().violations == {}


def test_an_unconfirmed_complete_may_be_followed_by_another_delivery(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.settle("a", end=Phase.INFO)
    story.history.server_ended()
    story.deliver("a")
    story.settle("a")
    assert story.judge().violations == {}


def test_two_owners_of_one_lock(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.deliver("a", process="other")
    story.settle("a", process="other")
    assert story.judge().violations == {"double_locked": ["a"]}


def test_an_abandoned_or_expired_lock_may_be_granted_again(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.settle("a", Operation.ABANDON)
    story.deliver("a", process="other", count=1)
    story.clock.ms += LOCK_MS
    story.deliver("a", count=2)
    story.settle("a")
    assert story.judge().violations == {}


def test_a_lock_may_be_forgotten_when_the_server_dies(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.history.server_ended()
    story.deliver("a", process="other")
    story.settle("a", process="other")
    assert story.judge().violations == {}


def test_a_number_given_to_two_messages_is_reused(story: Story) -> None:
    for key in ("a", "b"):
        story.send(key)
        story.deliver(key, number=7)
        story.settle(key)
    assert story.judge().violations == {"reused_sequence": ["q 7: a and b"]}


def test_a_delivery_count_that_goes_down_within_one_life(story: Story) -> None:
    story.send("a")
    story.deliver("a", count=3)
    story.clock.ms += LOCK_MS
    story.deliver("a", count=2)
    story.settle("a")
    assert story.judge().violations == {"count_decreased": ["a"]}


def test_a_confirmed_abandon_counts_across_a_crash(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.settle("a", Operation.ABANDON)
    story.history.server_ended()
    story.deliver("a", count=0)
    story.settle("a")
    assert story.judge().violations == {"count_decreased": ["a"]}


def test_a_count_that_rose_by_expiry_may_be_forgotten_by_a_crash(story: Story) -> None:
    story.send("a")
    story.deliver("a")
    story.clock.ms += LOCK_MS
    story.deliver("a", count=1)
    story.history.server_ended()
    story.deliver("a", count=0)
    story.settle("a")
    assert story.judge().violations == {}
