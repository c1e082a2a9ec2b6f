"""The Config.json of Microsoft's emulator, and JSON with lines."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.config import Declared, SubscriptionConfig, TopicConfig
from twinbus.emulator_config import EmulatorConfig, parse_emulator_config, read_emulator_config
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.errors import ConfigError
from twinbus.json_lines import NESTING_MAX, parse

pytestmark = pytest.mark.proves("M-9")

WHOLE = """\
{
  // the emulator's own file has comments
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns", /* and its name */
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT30S",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": true
            }
          },
          { "Name": "plain" },
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "RequiresDuplicateDetection": true
            },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": {
                  "DeadLetteringOnMessageExpiration": false,
                  "DefaultMessageTimeToLive": "PT1H",
                  "ForwardDeadLetteredMessagesTo": "",
                  "ForwardTo": "plain",
                  "LockDuration": "PT1M",
                  "MaxDeliveryCount": 4,
                  "RequiresSession": false
                },
                "Rules": [
                  {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {
                        "ContentType": "application/text",
                        "CorrelationId": "id1",
                        "Label": "subject1",
                        "MessageId": "msgid1",
                        "ReplyTo": "someQueue",
                        "ReplyToSessionId": "sessionId",
                        "SessionId": "session1",
                        "To": "xyz",
                        "Properties": { "prop1": "value1" }
                      }
                    }
                  },
                  {
                    "Name": "sql",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": { "SqlExpression": "sys.MessageId = '1' AND user = 'x'" },
                      "Action": { "SqlExpression": "SET sys.To = 'Entity'" }
                    }
                  }
                ]
              },
              { "Name": "all" }
            ]
          }
        ]
      },
      { "Name": "second" }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


@pytest.mark.proves("E-1")
@pytest.mark.feature("entity.partitions")
def test_partitions_are_declared() -> None:
    entities = [{"Name": "e", "Properties": {"EnablePartitioning": True}}]
    namespaces = [{"Name": "a", "Queues": entities}, {"Name": "b", "Topics": entities}]
    text = json.dumps({"UserConfig": {"Namespaces": namespaces}})
    (_, first), (_, second) = parse_emulator_config(text, "Config.json").namespaces
    assert first.queues == (("e", QueueDescription(enable_partitioning=True)),)
    assert second.topics[0].description == TopicDescription(enable_partitioning=True)


@pytest.mark.feature("entity.config-json")
def test_emulator_config() -> None:
    queues = (
        (
            "queue.1",
            QueueDescription(
                dead_lettering_on_message_expiration=True,
                default_time_to_live_ms=3_600_000,
                duplicate_detection_window_ms=20_000,
                lock_duration_ms=30_000,
                max_delivery_count=3,
                requires_session=True,
            ),
        ),
        ("plain", QueueDescription()),
    )
    system = {
        "ContentType": "application/text",
        "CorrelationId": "id1",
        "Label": "subject1",
        "MessageId": "msgid1",
        "ReplyTo": "someQueue",
        "ReplyToSessionId": "sessionId",
        "SessionId": "session1",
        "To": "xyz",
    }
    rules = (
        RuleDescription.from_mapping(
            {"name": "app-prop-filter-1", "system": system, "properties": {"prop1": "value1"}}
        ),
        RuleDescription.from_mapping(
            {
                "name": "sql",
                "expression": "sys.MessageId = '1' AND user = 'x'",
                "action": "SET sys.To = 'Entity'",
            }
        ),
    )
    subscription = SubscriptionDescription(
        default_time_to_live_ms=3_600_000, forward_to="plain", max_delivery_count=4
    )
    topic = TopicDescription(
        default_time_to_live_ms=3_600_000,
        duplicate_detection_window_ms=20_000,
        requires_duplicate_detection=True,
    )
    subscriptions = (
        SubscriptionConfig("subscription.1", subscription, rules),
        SubscriptionConfig("all", SubscriptionDescription()),
    )
    declared = Declared(queues, (TopicConfig("topic.1", topic, subscriptions),))
    assert parse_emulator_config(WHOLE, "Config.json") == EmulatorConfig(
        (("sbemulatorns", declared), ("second", Declared()))
    )


def test_one_namespace_needs_no_name() -> None:
    text = '{"UserConfig": {"Namespaces": [{"Queues": [{"Name": "q"}]}]}}'
    declared = Declared((("q", QueueDescription()),))
    assert parse_emulator_config(text, "f") == EmulatorConfig(((None, declared),))


def test_names_are_those_of_service_bus() -> None:
    """Its own emulator wants a letter or a digit at both ends.  Dots alone: see declaring.py."""
    for name in ("NS/Fault--NS/Message--", "_q", "-q.", "a/../b"):
        text = f'{{"UserConfig": {{"Namespaces": [{{"Queues": [{{"Name": "{name}"}}]}}]}}}}'
        declared = Declared(((name, QueueDescription()),))
        assert parse_emulator_config(text, "f") == EmulatorConfig(((None, declared),))


def with_line(line: int, text: str) -> str:
    lines = WHOLE.splitlines()
    lines[line - 1] = text
    return "\n".join(lines)


@pytest.mark.parametrize(
    "line, text, reason",
    [
        (3, '"UserConfg": {', "unknown key UserConfg in the file; the nearest is UserConfig"),
        (6, '"Nam": "x",', "unknown key Nam in a namespace; the nearest is Name"),
        (6, '"Name": 7,', "Name is not text"),
        (6, '"Name": "a b",', "namespace name 'a b' is not valid"),
        (9, '"Name": "a//b",', "empty path segment"),
        (9, '"Name": "plain?",', "is not allowed"),
        (11, '"DeadLetteringOnMessageExpiration": "yes",', "DeadLetteringOnMessageExpiration"),
        (11, '"DeadLetteringOnExpiration": true,', "nearest is DeadLetteringOnMessageExpiration"),
        (
            12,
            '"DefaultMessageTimeToLive": "1h",',
            "DefaultMessageTimeToLive: '1h' is not an ISO 8601",
        ),
        (12, '"DefaultMessageTimeToLive": 3600,', "DefaultMessageTimeToLive is not text"),
        (15, '"ForwardTo": "a?b",', "ForwardTo: The entity name 'a?b' is not allowed"),
        (16, '"LockDuration": "PT1S",', "LockDuration: lock_duration_ms is 1000; allowed is 5000"),
        (17, '"MaxDeliveryCount": 0,', "MaxDeliveryCount"),
        (17, '"MaxDeliveryCount": 2.5,', "MaxDeliveryCount"),
        (17, '"MaxDeliveryCount": true,', "MaxDeliveryCount"),
        (17, '"MaxDeliveryCount": [],', "MaxDeliveryCount has a nested value"),
        (17, '"ForwardTo": "",', "expected ForwardTo only once"),
        (19, '"RequiresSession": maybe', "found m, expected JSON"),
        (22, '{ "Name": "QUEUE.1" },', "queue QUEUE.1 is declared twice"),
        (22, '{ "Properties": {} },', "Name is missing"),
        (22, "7,", "a queue is not an object"),
        (28, '"LockDuration": "PT1M",', "unknown key LockDuration in Properties"),
        (34, '"Name": "a/b",', "must not contain a slash"),
        (34, f'"Name": "{"x" * 51}",', "has 51 characters"),
        (36, '"EnablePartitioning": true,', "unknown key EnablePartitioning in Properties"),
        (11, '"EnablePartitioning": "yes",', "enable_partitioning is 'yes', which is not bool"),
        (36, '"MaxSizeInMegabytes": 1024,', "unknown key MaxSizeInMegabytes in Properties"),
        (46, '"Name": "with/slash",', "The rule name"),
        (48, '"FilterType": "Boolean",', "FilterType must be one of Correlation, Sql"),
        (48, '"FilterType": "Sql",', "a filter of this type needs SqlFilter"),
        (50, '"ContentTyp": "x",', "unknown key ContentTyp in CorrelationFilter"),
        (50, '"ContentType": 7,', "ContentType is not text"),
        (58, '"Properties": { "prop1": [] }', "prop1 has a nested value"),
        (58, '"Properties": 7', "Properties is not an object"),
        (66, '"SqlFilter": { "Sql": "1=1" },', "unknown key Sql in SqlFilter"),
        (66, '"SqlFilter": {},', "SqlExpression is missing"),
        (66, '"SqlFilter": { "SqlExpression": "a = = b" },', "SqlExpression: "),
        (67, '"Action": { "SqlExpression": "SET" }', "SqlExpression: "),
        (67, '"Action": { "SqlExpression": 7 }', "SqlExpression is not text"),
        (72, '{ "Name": "SUBSCRIPTION.1" }', "subscription SUBSCRIPTION.1 is declared twice"),
        (72, '"all"', "a subscription is not an object"),
        (77, '{ "Name": "SBEMULATORNS" }', "namespace SBEMULATORNS is declared twice"),
        (79, '"Loging": {}', "unknown key Loging in UserConfig; the nearest is Logging"),
    ],
)
def test_faults_are_named_with_their_line(line: int, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_emulator_config(with_line(line, text), "Config.json")
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"Config.json, line {line}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line, text, reason",
    [
        (26, '"Name": "PLAIN",', "line 25: topic PLAIN is declared twice"),
        (49, '"CorrelationFilter": {}, "CorrelationFilter": {', "CorrelationFilter only once"),
        (63, '"Name": "APP-PROP-FILTER-1",', "line 62: rule APP-PROP-FILTER-1 is declared twice"),
        (65, '"CorrelationFilter": {},', "line 66: a rule can have only one filter"),
        (77, "{}", "line 4: a namespace has no Name"),
    ],
)
def test_faults_of_several_lines_are_named_with_the_first(
    line: int, text: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_emulator_config(with_line(line, text), "Config.json")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "line 1: found the end of the file, expected a value"),
        ("{", "line 1: found the end of the file"),
        ("{}", "line 1: UserConfig is missing"),
        ('{"UserConfig": {}}', "Namespaces is missing"),
        ('{"UserConfig": {"Namespaces": []}}', "0 namespaces"),
        ('{"UserConfig": {"Namespaces": [{}, {}]}}', "is declared twice"),
        ("{}\n{}", "line 2: found {, expected nothing more"),
        ("[" * (NESTING_MAX + 2), "levels of nesting"),
        ('{"a" "b"}', 'found "b", expected `:`'),
        ("{1: 2}", 'expected a key in "quotes"'),
        ("01x", "expected"),
        ('"\\q"', "expected JSON"),
    ],
)
def test_files_that_are_not_one(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_emulator_config(text, "Config.json")
    assert reason in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_emulator_config(tmp_path / "missing.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 7"):
        read_emulator_config(binary)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def plain(value: object) -> object:
    """A parsed value without its lines."""
    if isinstance(value, list):
        return [plain(node.value) for node in value]
    if isinstance(value, dict):
        return {key: plain(node.value) for key, node in value.items()}
    return value


@given(json_values, st.sampled_from([None, 2]))
def test_any_json_is_read_as_json_reads_it(value: object, indent: int | None) -> None:
    assert plain(parse(json.dumps(value, indent=indent), "f").value) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, "f")
    except ConfigError as error:
        assert str(error).startswith("f, line ")
