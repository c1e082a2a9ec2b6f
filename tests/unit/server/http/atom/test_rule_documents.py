"""Rules as XML, filter by filter and type by type."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.http.atom.xml_bodies import document, entry_content
from twinbus.entities.rule_descriptions import (
    CORRELATION,
    FALSE,
    SQL,
    TRUE,
    ActionDescription,
    FilterDescription,
    RuleDescription,
)
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange
from twinbus.gateway.namespaces.views import RuleView
from twinbus.server.http.atom.feeds import SERVICE_BUS, TYPE, read_content
from twinbus.server.http.atom.rule_documents import RULE, read_rule, rule_entry

pytestmark = pytest.mark.proves("M-6", "M-11")

XSI = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'


def read(inner: str, name: str = "r") -> RuleDescription:
    return read_rule(read_content(document(inner, RULE, XSI), (RULE,)), name)


def written(rule: RuleDescription) -> bytes:
    view = RuleView(rule)
    return rule_entry(view, "topic", "subscription").written("https://h:1").encode()


def again(rule: RuleDescription) -> RuleDescription:
    """Through XML and back."""
    return read_rule(read_content(written(rule), (RULE,)), "").stamped(rule.created_utc_ms)


def pair(key: str, kind: str, text: str) -> str:
    return (
        f'<KeyValueOfstringanyType><Key>{key}</Key><Value i:type="x:{kind}" '
        f'xmlns:x="http://www.w3.org/2001/XMLSchema">{text}</Value></KeyValueOfstringanyType>'
    )


def filter_of(kind: str, inner: str = "") -> str:
    return f'<Filter i:type="{kind}">{inner}</Filter>'


def parameters(kind: str, text: str) -> dict[str, object]:
    values = f"<Parameters>{pair('@p', kind, text)}</Parameters>"
    inner = f'<Filter i:type="SqlFilter"><SqlExpression>a = @p</SqlExpression>{values}</Filter>'
    return read(inner).filter.parameters


class TestReading:
    def test_sql_filter_and_action(self) -> None:
        rule = read(
            "<Filter i:type=\"SqlFilter\"><SqlExpression>a &lt; @p AND b = 'x'</SqlExpression>"
            "<CompatibilityLevel>20</CompatibilityLevel>"
            f"<Parameters>{pair('@p', 'int', '7')}</Parameters>"
            "<RequiresPreprocessing>true</RequiresPreprocessing></Filter>"
            '<Action i:type="SqlRuleAction"><SqlExpression>SET c = @q</SqlExpression>'
            f"<Parameters>{pair('@q', 'string', ' x ')}</Parameters></Action>"
            "<CreatedAt>2026-11-01T00:00:00Z</CreatedAt><Name>r</Name>"
        )
        assert (rule.name, rule.filter.kind) == ("r", SQL)
        assert rule.filter.expression == "a < @p AND b = 'x'"
        assert rule.filter.parameters == {"@p": 7}
        assert rule.action is not None
        assert rule.action.expression == "SET c = @q"
        assert rule.action.parameters == {"@q": " x "}

    def test_correlation_filter(self) -> None:
        rule = read(
            '<Filter i:type="CorrelationFilter"><CorrelationId>c</CorrelationId>'
            '<MessageId>m</MessageId><To i:nil="true"/><Label> l </Label>'
            f"<Properties>{pair('Size', 'double', '1.5')}</Properties></Filter>"
        )
        assert rule.filter.kind == CORRELATION
        assert rule.filter.system == {"correlationid": "c", "messageid": "m", "label": " l "}
        assert rule.filter.properties == {"Size": 1.5}
        assert rule.action is None

    def test_unknown_elements_are_skipped(self) -> None:
        values = f"<Other/>{pair('a', 'int', '1')}<Other/>"
        rule = read(filter_of("CorrelationFilter", f"<New/><Properties>{values}</Properties>"))
        assert rule.filter.properties == {"a": 1}

    def test_true_and_false(self) -> None:
        true = '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>'
        false = '<Filter i:type="FalseFilter"><SqlExpression>1&gt;1</SqlExpression></Filter>'
        assert read(true).filter.kind == TRUE
        assert read(false + '<Action i:type="EmptyRuleAction"/>').filter.kind == FALSE
        assert read("").filter.kind == TRUE

    def test_name_is_the_address_s(self) -> None:
        assert read("<Name>R</Name>", "r").name == "r"
        assert read("", "").name == "$Default"
        assert read("<Name>own</Name>", "").name == "own"
        with pytest.raises(ArgumentInvalid, match="inside"):
            read("<Name>other</Name>", "r")

    @pytest.mark.parametrize(
        ("kind", "text", "value"),
        [
            ("string", "", ""),
            ("string", " é ", " é "),
            ("int", " 7 ", 7),
            ("long", "-9223372036854775808", -(2**63)),
            ("unsignedByte", "255", 255),
            ("boolean", "TRUE", True),
            ("boolean", "0", False),
            ("double", "-1.5e3", -1500.0),
            ("float", ".5", 0.5),
            ("decimal", "0.10", Decimal("0.10")),
            ("dateTime", "2026-11-01T00:00:00Z", datetime(2026, 11, 1, tzinfo=UTC)),
            ("dateTime", "2026-11-01T02:00:00+02:00", datetime(2026, 11, 1, tzinfo=UTC)),
            ("dateTime", "2026-11-01T00:00:00", datetime(2026, 11, 1, tzinfo=UTC)),
            ("duration", "P1DT0.000001S", timedelta(days=1, microseconds=1)),
            ("duration", "-PT1M", timedelta(minutes=-1)),
            ("duration", "P999999999Y", timedelta(milliseconds=922_337_203_685_477)),
            (
                "guid",
                "0f5ef5a4-4b5f-4f4e-8f6e-0123456789ab",
                UUID(int=0xF5EF5A44B5F4F4E8F6E0123456789AB),
            ),
            ("base64Binary", "AAE=", b"\x00\x01"),
        ],
    )
    def test_types(self, kind: str, text: str, value: object) -> None:
        found = parameters(kind, text)["@p"]
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("int", "x"),
            ("int", ""),
            ("int", "1_0"),
            ("int", "9" * 400),
            ("long", "99999999999999999999"),
            ("boolean", "maybe"),
            ("double", "NaN"),
            ("double", "1e9999"),
            ("decimal", "1e5"),
            ("dateTime", "yesterday"),
            ("dateTime", "0001-01-01T00:00:00+23:00"),
            ("duration", "1 minute"),
            ("guid", "x"),
            ("base64Binary", "!"),
            ("anyURI", "x"),
        ],
    )
    def test_values_that_are_none(self, kind: str, text: str) -> None:
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            parameters(kind, text)

    @pytest.mark.parametrize(
        "inner",
        [
            filter_of("OtherFilter"),
            filter_of("SqlFilter"),
            filter_of("SqlFilter", "<SqlExpression>a =</SqlExpression>"),
            filter_of("SqlFilter", f"<SqlExpression>{'a=1 or ' * 200}a=1</SqlExpression>"),
            filter_of("CorrelationFilter"),
            filter_of("CorrelationFilter", f"<Properties>{pair('', 'int', '1')}</Properties>"),
            filter_of("CorrelationFilter", f"<Properties>{pair('a', 'int', '1') * 2}</Properties>"),
            filter_of("TrueFilter") * 2,
            '<Action i:type="OtherAction"/>',
            '<Action i:type="SqlRuleAction"/>',
            '<Action i:type="SqlRuleAction"><SqlExpression>DROP x</SqlExpression></Action>',
        ],
    )
    def test_bad_filters_and_actions_are_refused(self, inner: str) -> None:
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            read(inner)

    @pytest.mark.parametrize("name", ["a/b", "a\\b", "x" * 51, "a?", "\u202e", " a"])
    def test_bad_names_are_refused(self, name: str) -> None:
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            read("", name)


VALUES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(
        allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9
    ),
    st.datetimes(timezones=st.just(UTC)),
    st.timedeltas(timedelta(days=-9_000), timedelta(days=9_000)),
    st.uuids(),
    st.binary(max_size=20),
)


class TestWriting:
    @given(
        st.dictionaries(
            st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True), VALUES, min_size=1, max_size=4
        )
    )
    def test_any_values_come_back(self, values: dict[str, object]) -> None:
        distinct = {key.lower(): value for key, value in values.items()}
        rule = RuleDescription(
            "r",
            FilterDescription(CORRELATION, system={"label": "<&>"}, properties=distinct),
            ActionDescription("SET x = @p", {"@p": next(iter(distinct.values()))}),
        )
        assert again(rule) == rule

    def test_every_kind_comes_back(self) -> None:
        for described in (
            FilterDescription(TRUE),
            FilterDescription(FALSE),
            FilterDescription(SQL, "a = @p", {"@p": None}),
            FilterDescription(SQL, "\"x y\" LIKE '%<&>]]>%'"),
            FilterDescription(CORRELATION, system={"to": "", "contenttype": "\"'"}),
        ):
            rule = RuleDescription("<r & 'x'>", described, None, 7)
            assert again(rule) == rule

    @pytest.mark.proves("M-13")
    def test_shape_that_the_sdks_need(self) -> None:
        """Python reads `{instance}type` after the colon, Node the attribute `i:type` from its sixth
        character on, and names from addresses; both want an action, always."""
        rule = RuleDescription(
            "$Default", FilterDescription(CORRELATION, properties={"a": 1, "b": 2**40}), None, 7
        )
        text = written(rule).decode()
        assert '<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1<' in text
        assert 'i:type="d6p1:long"' in text
        assert '<Action i:type="EmptyRuleAction"/>' in text
        assert "<id>https://h:1/topic/Subscriptions/subscription/Rules/$Default</id>" in text
        content = entry_content(text.encode())
        names = [child.tag.removeprefix(f"{{{SERVICE_BUS}}}") for child in content]
        assert names == ["Filter", "Action", "CreatedAt", "Name"]
        assert content[0].get(TYPE) == "CorrelationFilter"

    def test_order_of_correlation_elements(self) -> None:
        names = ("contenttype", "replytosessionid", "sessionid", "label", "replyto", "to")
        system: dict[str, object] = dict.fromkeys((*names, "messageid", "correlationid"), "x")
        rule = RuleDescription("r", FilterDescription(CORRELATION, system=system))
        found = [child.tag.partition("}")[2] for child in entry_content(written(rule))[0]]
        assert found == [
            "CorrelationId",
            "MessageId",
            "To",
            "ReplyTo",
            "Label",
            "SessionId",
            "ReplyToSessionId",
            "ContentType",
        ]

    def test_times_of_any_zone_are_written_in_utc(self) -> None:
        moment = datetime(2026, 11, 1, 2, tzinfo=timezone(timedelta(hours=2)))
        rule = RuleDescription("r", FilterDescription(SQL, "a = @p", {"@p": moment}))
        assert b">2026-11-01T00:00:00Z<" in written(rule)


def test_bodies_of_the_tests_are_well_formed() -> None:
    assert fromstring(document("", RULE, XSI)) is not None
