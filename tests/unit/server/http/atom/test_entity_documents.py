"""Descriptions of entities as XML, setting by setting."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.http.atom.xml_bodies import document
from twinbus.entities.commands import Runtime
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.message import NEVER_MS
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.namespaces.views import QueueView
from twinbus.limits import XML_DEPTH_MAX, XML_ELEMENTS_MAX
from twinbus.server.http.atom.entity_documents import (
    COUNTS,
    QUEUE,
    SETTINGS,
    SUBSCRIPTION,
    TOPIC,
    DescriptionReader,
    entity_entry,
)
from twinbus.server.http.atom.feeds import ATOM, read_content, utc_text
from twinbus.server.http.exchange import xml_text
from twinbus.server.http.xml_reader import read_xml

pytestmark = pytest.mark.proves("M-9", "M-11")

NEWEST = "2024-05"
FOREVER = "P10675199DT2H48M5.4775807S"


def read(body: bytes, current: QueueDescription | None = None) -> QueueDescription:
    return DescriptionReader(NEWEST, 7, current).queue(read_content(body, (QUEUE,)))


def written(description: QueueDescription, availability: str = "Available") -> bytes:
    view = QueueView(Entity(1, "queue", "q", description, []), Runtime(), availability)
    return entity_entry(view, "https://h", NEWEST).written("https://h").encode()


class TestSettings:
    @given(st.binary(max_size=200))
    def test_any_bytes(self, data: bytes) -> None:
        with pytest.raises(ArgumentInvalid):
            read(data)

    @given(
        st.dictionaries(
            st.sampled_from(sorted(SETTINGS)),
            st.sampled_from(["PT30S", "P1D", FOREVER, "7", "true", "0", "Disabled", "a/b"])
            | st.text(max_size=30),
            max_size=3,
        )
    )
    def test_any_values(self, values: dict[str, str]) -> None:
        """A description or a refusal; and what was read is written back the same."""
        inner = "".join(f"<{name}>{xml_text(text)}</{name}>" for name, text in values.items())
        try:
            description = read(document(inner))
        except (ArgumentInvalid, ArgumentOutOfRange):
            return
        assert read(written(description), description) == description

    @pytest.mark.proves("M-13")
    def test_everything_the_sdk_sends_back_on_update(self) -> None:
        settings = (
            "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>"
            "<DefaultMessageTimeToLive>P10675199DT2H48M5.477539S</DefaultMessageTimeToLive>"
            "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
            "<EnableBatchedOperations>false</EnableBatchedOperations>"
            "<SizeInBytes>1</SizeInBytes><MessageCount>1</MessageCount>"
            "<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules />"
            "<Status>SendDisabled</Status><CreatedAt>2027-01-15T08:00:00.000Z</CreatedAt>"
            f'<CountDetails><d:ActiveMessageCount xmlns:d="{COUNTS}">1</d:ActiveMessageCount>'
            "</CountDetails><EntityAvailabilityStatus>Available</EntityAvailabilityStatus>"
            "<ForwardTo/><UserMetadata>  </UserMetadata><SomethingNew>1</SomethingNew>"
            "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>"
        )
        expected = dataclasses.replace(
            QueueDescription(),
            lock_duration_ms=30_000,
            max_size_megabytes=2_048,
            default_time_to_live_ms=NEVER_MS,
            dead_lettering_on_message_expiration=True,
            enable_batched_operations=False,
            status="SendDisabled",
        )
        assert read(document(settings)) == expected

    @pytest.mark.parametrize(
        "settings",
        [
            "<LockDuration>soon</LockDuration>",
            "<LockDuration>PT1S</LockDuration>",
            "<LockDuration>PT6M</LockDuration>",
            "<MaxDeliveryCount>0</MaxDeliveryCount>",
            "<MaxDeliveryCount>-1</MaxDeliveryCount>",
            "<MaxDeliveryCount>1e3</MaxDeliveryCount>",
            f"<MaxDeliveryCount>{'9' * 5000}</MaxDeliveryCount>",
            "<RequiresSession>maybe</RequiresSession>",
            "<Status>Sleeping</Status>",
            "<LockDuration>PT9S</LockDuration><LockDuration>PT9S</LockDuration>",
            "<AuthorizationRules/><AuthorizationRules/>",
            f"<UserMetadata>{'x' * 1025}</UserMetadata>",
            "<ForwardTo>sb://h/%FF</ForwardTo>",
            "<ForwardTo>sb://[/x</ForwardTo>",
            "<ForwardTo>a//x</ForwardTo>",
            "<AutoDeleteOnIdle>PT4M59S</AutoDeleteOnIdle>",
            "<DuplicateDetectionHistoryTimeWindow>P8D</DuplicateDetectionHistoryTimeWindow>",
        ],
    )
    def test_bad_settings(self, settings: str) -> None:
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            read(document(settings))

    def test_every_kind_reads_its_own_settings(self) -> None:
        inner = (
            "<LockDuration>PT9S</LockDuration><MaxSizeInMegabytes>5120</MaxSizeInMegabytes>"
            "<DeadLetteringOnFilterEvaluationExceptions>0</DeadLetteringOnFilterEvaluationExceptions>"
            "<FilteringMessagesBeforePublishing>1</FilteringMessagesBeforePublishing>"
        )
        reader = DescriptionReader(NEWEST, 7, None)
        topic = reader.topic(read_content(document(inner, TOPIC), (TOPIC,)))
        assert topic == TopicDescription(
            max_size_megabytes=5_120, filtering_messages_before_publishing=True
        )
        content = read_content(document(inner, SUBSCRIPTION), (SUBSCRIPTION,))
        assert reader.subscription(content) == SubscriptionDescription(
            lock_duration_ms=9_000, dead_lettering_on_filter_evaluation_exceptions=False
        )
        assert read(document(inner)) == QueueDescription(
            lock_duration_ms=9_000, max_size_megabytes=5_120
        )


@pytest.mark.feature("entity.partitions")
class TestPartitions:
    @pytest.mark.proves("E-1")
    def test_every_setting_goes_in_and_out(self) -> None:
        body = document("<EnablePartitioning>true</EnablePartitioning>")
        description = read(body)
        assert description == QueueDescription(enable_partitioning=True)
        text = written(description).decode()
        assert "<EnablePartitioning>true</EnablePartitioning>" in text
        assert "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus>" in text

    @pytest.mark.proves("E-12")
    def test_what_cannot_be_reached_shows(self) -> None:
        text = written(QueueDescription(enable_partitioning=True), "Limited")
        assert b"<EntityAvailabilityStatus>Limited</EntityAvailabilityStatus>" in text

    @pytest.mark.proves("E-2")
    @pytest.mark.parametrize("megabytes", [1, 1_024, 5_120])
    def test_the_size_of_all_is_shown(self, megabytes: int) -> None:
        """As the service does it; and what was shown may come back with an update."""
        current = QueueDescription(enable_partitioning=True, max_size_megabytes=megabytes)
        shown = written(current)
        assert f"<MaxSizeInMegabytes>{16 * megabytes}</MaxSizeInMegabytes>" in shown.decode()
        assert read(shown, current) == current

    @pytest.mark.proves("E-2")
    @pytest.mark.parametrize(
        "given, expected", [(2_048, 2_048), (32_768, 2_048), (16_384, 1_024), (81_920, 5_120)]
    )
    def test_an_update_may_say_either_size(self, given: int, expected: int) -> None:
        current = QueueDescription(enable_partitioning=True)
        inner = f"<MaxSizeInMegabytes>{given}</MaxSizeInMegabytes>"
        body = document(inner + "<EnablePartitioning>true</EnablePartitioning>")
        assert read(body, current).max_size_megabytes == expected

    @pytest.mark.proves("E-2")
    def test_sizes_beyond(self) -> None:
        current = QueueDescription(enable_partitioning=True)
        for size, now in ((81_936, current), (5_121, current), (16_384, None), (5_121, None)):
            inner = f"<MaxSizeInMegabytes>{size}</MaxSizeInMegabytes>"
            body = document(inner + "<EnablePartitioning>true</EnablePartitioning>")
            with pytest.raises(ArgumentOutOfRange, match="max_size_megabytes"):
                read(body, now)

    def test_sizes_without_partitions_stay_as_they_are(self) -> None:
        current = QueueDescription(max_size_megabytes=1_024)
        body = document("<MaxSizeInMegabytes>81920</MaxSizeInMegabytes>")
        assert read(body, current).max_size_megabytes == 81_920
        assert b"<MaxSizeInMegabytes>1024</MaxSizeInMegabytes>" in written(current)


class TestXml:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"hello",
            b"<entry",
            b"<entry/>",
            b"<a><b></a></b>",
            b"<a/><b/>",
            b"\x00\x01\x02",
            b"\xff\xfe\x00",
            b'<?xml version="1.0" encoding="no-such-encoding"?><a/>',
            b'<?xml version="1.0" encoding="utf-7"?><a/>',
            b'<?xml version="1.0" encoding="shift_jis"?><a/>',
            f'<entry xmlns="{ATOM}"/>'.encode(),
            f'<entry xmlns="{ATOM}"><content/></entry>'.encode(),
            document(kind="RuleDescription"),
            document("<LockDuration>&undefined;</LockDuration>"),
            b"<!DOCTYPE a><a/>",
            b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><a/>',
            b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
            b'<!DOCTYPE a [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]><a/>',
            b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><l>&b;</l>',
            document("<a>" * XML_DEPTH_MAX + "</a>" * XML_DEPTH_MAX),
            document("<a/>" * XML_ELEMENTS_MAX),
        ],
    )
    def test_unfit(self, body: bytes) -> None:  # C13: no DTD, bounded depth and count
        with pytest.raises(ArgumentInvalid):
            read(body)

    def test_depth_and_count_at_their_limits(self) -> None:
        deep = b"<a>" * XML_DEPTH_MAX + b"</a>" * XML_DEPTH_MAX
        assert read_xml(deep).tag == "a"
        wide = b"<a>" + b"<b/>" * (XML_ELEMENTS_MAX - 1) + b"</a>"
        assert len(read_xml(wide)) == XML_ELEMENTS_MAX - 1

    def test_attributes_have_their_namespace(self) -> None:
        assert read_xml(b'<a xmlns:p="urn:x" p:b="1" c="2"/>').attrib == {"{urn:x}b": "1", "c": "2"}

    def test_utf_16_is_read(self) -> None:
        text = document("<UserMetadata>é</UserMetadata>").decode()
        body = ('<?xml version="1.0" encoding="utf-16"?>' + text).encode("utf-16")
        assert read(body).user_metadata == "é"


def test_times_are_utc_with_milliseconds() -> None:
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert utc_text(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"
