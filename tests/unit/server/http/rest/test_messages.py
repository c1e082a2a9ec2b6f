"""Messages as HTTP shows them, in both directions."""

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.types import Described, Symbol, Timestamp, UInt
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, InvalidOperation, ServiceError
from twinbus.message.plain import (
    DecodedMessage,
    Properties,
    data_section,
    decode_message,
    encode_message,
    sequence_section,
    value_section,
)
from twinbus.server.http.rest.messages import (
    body_of,
    broker_facts,
    broker_properties,
    property_headers,
    read_batch,
    read_message,
)
from twinbus.server.http.rest.times import FOREVER_MS, http_date, read_date, read_seconds

pytestmark = pytest.mark.proves("M-11")

NOW_MS = 1_800_000_000_000
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
DATE_MS = 784_111_777_000


def sent(body: bytes = b"", broker: object = None, **headers: str) -> DecodedMessage:
    """What a request with these headers becomes."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    if broker is not None:
        named.append(
            ("BrokerProperties", broker if isinstance(broker, str) else json.dumps(broker))
        )
    lowered = {name.lower(): value for name, value in named}
    return decode_message(read_message(lowered, named, body, NOW_MS))


def delivered(**parts: Any) -> DecodedMessage:
    return decode_message(encode_message(**parts))


class TestSending:
    @pytest.mark.proves("M-11")
    def test_everything_that_broker_properties_can_say(self) -> None:
        message = sent(
            b"\x00body",
            {
                "CorrelationId": "c",
                "ForcePersistence": True,
                "Label": "l",
                "MessageId": "m",
                "PartitionKey": "s",
                "ReplyTo": "r",
                "ReplyToSessionId": "rs",
                "ScheduledEnqueueTimeUtc": DATE,
                "SessionId": "s",
                "TimeToLive": 1.5,
                "To": "t",
                "ViaPartitionKey": "v",
                "DeliveryCount": 9,
                "Unknown": {"is": "ignored"},
            },
            Content_Type="text/plain",
        )
        properties = message.properties
        assert message.body == b"\x00body"
        assert message.durable
        assert message.ttl_ms == 1_500
        assert properties.correlation_id == "c"
        assert properties.subject == "l"
        assert properties.message_id == "m"
        assert properties.reply_to == "r"
        assert properties.reply_to_group_id == "rs"
        assert properties.group_id == "s"
        assert properties.to == "t"
        assert properties.content_type == "text/plain"
        assert message.annotations == {
            "x-opt-partition-key": "s",
            "x-opt-via-partition-key": "v",
            "x-opt-scheduled-enqueue-time": Timestamp(DATE_MS),
        }

    def test_nothing_said(self) -> None:
        message = sent(b"x")
        assert message.ttl_ms is None
        assert message.annotations == {}
        assert message.application_properties == {}
        assert message.properties.message_id is None
        assert sent(b"x", {"MessageId": "", "TimeToLive": None}).properties.message_id is None

    def test_content_type_of_broker_properties_goes_first(self) -> None:
        message = sent(b"", {"ContentType": "a/b"}, Content_Type="c/d")
        assert message.properties.content_type == "a/b"

    def test_a_ttl_beyond_its_field(self) -> None:
        message = sent(b"", {"TimeToLive": 100 * 86_400})
        assert message.ttl_ms is None
        assert message.properties.creation_ms == NOW_MS
        assert message.properties.absolute_expiry_ms == NOW_MS + 100 * 86_400_000
        for forever in (922337203685.4775, "10675199.02:48:05.4775807", 10**400):
            message = sent(b"", {"TimeToLive": forever})
            assert message.properties.absolute_expiry_ms is None

    @pytest.mark.proves("M-11")
    @pytest.mark.parametrize(
        "text, value",
        [
            ('"High"', "High"),
            ('"a \\"b\\" \\u00e4"', 'a "b" ä'),
            ("High", "High"),
            ("12345,ABC", "12345,ABC"),
            ('"broken', '"broken'),
            ('"a" "b"', '"a" "b"'),
            ("5", 5),
            ("-7", -7),
            ("1.5", 1.5),
            ("1e3", 1000.0),
            ("1.2.3", "1.2.3"),
            ("007", "007"),
            ("99999999999999999999", 1e20),
            ("true", True),
            ("false", False),
            ("null", None),
            ("True", "True"),
            ("NaN", "NaN"),
            ("[1]", "[1]"),
            ("{}", "{}"),
            ("", ""),
            ("Ã¤", "ä"),  # UTF-8 as it looks when read as Latin-1
            ("\xe4", "ä"),
            (f'"{DATE}"', Timestamp(DATE_MS)),
            (DATE, Timestamp(DATE_MS)),
            ('"Sun, 99 Nov 1994 08:49:37 GMT"', "Sun, 99 Nov 1994 08:49:37 GMT"),
            ("9" * 5_000, "9" * 5_000),
        ],
    )
    def test_other_headers_are_properties(self, text: str, value: object) -> None:
        properties = sent(b"", My_Name=text).application_properties
        assert properties == {"My-Name": value}
        assert type(properties["My-Name"]) is type(value)

    def test_headers_that_are_no_properties(self) -> None:
        names = (
            "Host,User-Agent,Accept,Accept-Encoding,Authorization,Content-Length,Content-Type,Date,"
            "Connection,Cookie,Expect,If-Match,Origin,Referer,Sec-Fetch-Mode,Transfer-Encoding,Via,"
            "X-Forwarded-For,x-ms-retrypolicy,ServiceBusSupplementaryAuthorization"
        )
        headers = dict.fromkeys(names.replace("-", "_").split(","), "x")
        assert sent(b"", **headers).application_properties == {}

    @pytest.mark.proves("M-11")
    @pytest.mark.parametrize(
        "broker, error",
        [
            ("{", ArgumentInvalid),
            ("[]", ArgumentInvalid),
            ("1", ArgumentInvalid),
            ('{"MessageId": NaN}', ArgumentInvalid),
            ("[" * 20_000, ArgumentInvalid),
            ('{"a":' * 20_000, ArgumentInvalid),
            ({"MessageId": 5}, ArgumentInvalid),
            ({"MessageId": ["x"]}, ArgumentInvalid),
            ({"MessageId": "x" * 129}, ArgumentOutOfRange),
            ({"SessionId": "x" * 129}, ArgumentOutOfRange),
            ({"PartitionKey": "x" * 129}, ArgumentOutOfRange),
            ({"SessionId": "a", "PartitionKey": "b"}, InvalidOperation),
            ({"Label": True}, ArgumentInvalid),
            ({"Label": "\ud800"}, ArgumentInvalid),
            ({"TimeToLive": 0}, ArgumentOutOfRange),
            ({"TimeToLive": -5}, ArgumentOutOfRange),
            ({"TimeToLive": True}, ArgumentInvalid),
            ({"TimeToLive": "soon"}, ArgumentInvalid),
            ({"TimeToLive": {}}, ArgumentInvalid),
            ({"ScheduledEnqueueTimeUtc": "tomorrow"}, ArgumentInvalid),
            ({"ScheduledEnqueueTimeUtc": 5}, ArgumentInvalid),
            ({"ContentType": "text/plain\r\nX-Evil: yes"}, ArgumentInvalid),
        ],
    )
    def test_broker_properties_that_cannot_be(
        self, broker: object, error: type[ServiceError]
    ) -> None:
        with pytest.raises(error) as caught:
            sent(b"", broker)
        assert type(caught.value) is error

    @pytest.mark.proves("M-11")
    def test_batch(self) -> None:
        body = json.dumps(
            [
                {"Body": "first ä"},
                {
                    "Body": "second",
                    "BrokerProperties": {"Label": "l", "TimeToLiveTimeSpan": "0.00:00:40"},
                    "UserProperties": {"a": "x", "b": 1, "c": 2.5, "d": True, "e": None, "ä": ""},
                },
            ]
        )
        first, second = (decode_message(data) for data in read_batch(body.encode(), NOW_MS))
        assert first.body == "first ä".encode()
        assert second.properties.subject == "l"
        assert second.ttl_ms == 40_000
        assert second.application_properties == {
            "a": "x",
            "b": 1,
            "c": 2.5,
            "d": True,
            "e": None,
            "ä": "",
        }

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            b"[]",
            b"[1]",
            b"\xff",
            b"[" * 500_000,
            b'[{"Body": 5}]',
            b'[{"Body": "\\ud800"}]',
            b'[{"UserProperties": []}, {"UserProperties": [1]}]',
            b'[{"UserProperties": {"a": {}}}]',
            b'[{"UserProperties": {"a": "\\udc00"}}]',
            b'[{"UserProperties": {"\\udc00": 1}}]',
            b'[{"UserProperties": {"a": ' + b"9" * 400 + b"}}]",
            b'[{"BrokerProperties": "text"}]',
            json.dumps([{}] * 4_501).encode(),
        ],
    )
    def test_batches_that_cannot_be(self, body: bytes) -> None:
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            read_batch(body, NOW_MS)


class TestReceiving:
    @pytest.mark.proves("M-11")
    def test_broker_properties(self) -> None:
        message = delivered(
            body=data_section(b""),
            properties=Properties(message_id="m", subject="ä\r\n\x7f", group_id="s"),
            annotations={
                "x-opt-partition-key": "s",
                "x-opt-scheduled-enqueue-time": Timestamp(DATE_MS),
            },
            ttl_ms=2_500,
        )
        text = broker_properties(message, broker_facts(7, DATE_MS, 2, 0))
        assert text.isascii() and text.isprintable()
        assert json.loads(text) == {
            "MessageId": "m",
            "SessionId": "s",
            "Label": "ä\r\n\x7f",
            "PartitionKey": "s",
            "ScheduledEnqueueTimeUtc": DATE,
            "TimeToLive": 2.5,
            "SequenceNumber": 7,
            "EnqueuedTimeUtc": DATE,
            "DeliveryCount": 3,
            "State": "Active",
        }

    def test_ids_of_every_kind(self) -> None:
        number = uuid.UUID(int=5)
        for message_id, shown in ((number, str(number)), (b"\x00", "AA=="), (7, 7)):
            message = delivered(properties=Properties(message_id=message_id))
            assert json.loads(broker_properties(message, {})) == {"MessageId": shown}

    @pytest.mark.proves("M-11")
    def test_properties_are_headers(self) -> None:
        number = uuid.UUID(int=5)
        given: dict[str, object] = {
            "Text": 'a "b" ä\r\nX-Evil: yes\x7f',
            "int": 5,
            "uint": UInt(6),
            "float": 1.5,
            "nan": float("nan"),
            "yes": True,
            "none": None,
            "when": Timestamp(DATE_MS),
            "guid": number,
            "binary": b"\xff",
            "symbol": Symbol("s"),
        }
        headers = property_headers(delivered(application_properties=given))
        assert headers == [
            ("Text", '"a \\"b\\" \\u00e4\\r\\nX-Evil: yes\\u007f"'),
            ("int", "5"),
            ("uint", "6"),
            ("float", "1.5"),
            ("nan", '"nan"'),
            ("yes", "true"),
            ("none", "null"),
            ("when", f'"{DATE}"'),
            ("guid", f'"{number}"'),
            ("binary", '"/w=="'),
            ("symbol", '"s"'),
        ]

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "a b",
            "a:b",
            "a\r\nX-Evil",
            "ä",
            "Content-Length",
            "Transfer-Encoding",
            "Set-Cookie",
            "Location",
            "BrokerProperties",
            "Connection",
            "Access-Control-Allow-Origin",
            "Strict-Transport-Security",
        ],
    )
    def test_properties_that_cannot_be_headers_are_left_out(self, name: str) -> None:
        assert property_headers(delivered(application_properties={name: 1})) == []

    @pytest.mark.proves("M-11")
    @pytest.mark.parametrize(
        "section, body, content_type",
        [
            (data_section(b"\xff"), b"\xff", "application/octet-stream"),
            (data_section(b"a") + data_section(b"b"), b"ab", "application/octet-stream"),
            (b"", b"", "application/octet-stream"),
            (value_section(None), b"", "application/octet-stream"),
            (value_section(b"\xff"), b"\xff", "application/octet-stream"),
            (value_section("ä"), "ä".encode(), "text/plain; charset=utf-8"),
            (value_section(Symbol("s")), b"s", "text/plain; charset=utf-8"),
            (value_section(5), b"5", "application/json"),
            (value_section(True), b"true", "application/json"),
            (
                value_section({"a": [1, None], 2: "x"}),
                b'{"a":[1,null],"2":"x"}',
                "application/json",
            ),
            (value_section(Described(Symbol("x"), 1)), b"1", "application/json"),
            (sequence_section([1, "a"]), b'[1,"a"]', "application/json"),
        ],
    )
    def test_bodies(self, section: bytes, body: bytes, content_type: str) -> None:
        assert body_of(delivered(body=section)) == (body, content_type)
        typed = delivered(body=section, properties=Properties(content_type="x/y"))
        assert body_of(typed) == (body, "x/y")

    def test_a_content_type_that_is_no_header(self) -> None:
        message = DecodedMessage()
        for bad in ("a\r\nX-Evil: yes", "ä", "", " x"):
            message.properties.content_type = bad
            assert body_of(message) == (b"", "application/octet-stream")


class TestTimes:
    def test_dates(self) -> None:
        for text in (
            DATE,
            f" {DATE} ",
            "1994-11-06T08:49:37Z",
            "1994-11-06T08:49:37",
            "1994-11-06T09:49:37+01:00",
        ):
            assert read_date("x", text) == DATE_MS
        assert http_date(DATE_MS + 999) == DATE
        assert http_date(-1) == "Thu, 01 Jan 1970 00:00:00 GMT"
        assert http_date(1 << 62).endswith("9999 23:59:59 GMT")
        for text in ("", "x", "1994", DATE.replace("Nov", "Nvo"), DATE.replace("06", "31")):
            with pytest.raises(ArgumentInvalid):
                read_date("x", text)

    def test_durations(self) -> None:
        assert read_seconds("x", 90) == 90_000
        assert read_seconds("x", 0.5) == 500
        assert read_seconds("x", "00:01:30") == 90_000
        assert read_seconds("x", "1.02:03:04.5") == 93_784_500
        assert read_seconds("x", float("inf")) == FOREVER_MS
        with pytest.raises(ArgumentInvalid):
            read_seconds("x", float("nan"))


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.floats()))
def test_no_property_breaks_a_header(properties: dict[str, object]) -> None:
    message = DecodedMessage()
    message.application_properties.update(properties)
    message.properties.subject = "".join(properties)
    shown = broker_properties(message, {})
    for name, value in [*property_headers(message), ("BrokerProperties", shown)]:
        assert name.isascii() and " " not in name and ":" not in name
        assert value.isascii() and value.isprintable()
        json.loads(value)
