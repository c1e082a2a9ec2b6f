"""The lines of a meter: what they hold, and that damage is noticed."""

import json

import pytest

from twinbus.metered import (
    DAY_MS,
    HOUR_MS,
    Metered,
    decode_line,
    encode_line,
    iso,
    parse_iso,
    read_document,
    summed,
)

START_MS = parse_iso("2026-11-16T07:00:00Z")


def line(at_ms: int = START_MS, entity: str = "orders", kind: str = "receive") -> Metered:
    return Metered(at_ms, at_ms + 1_000, "twinbus", entity, kind, 3, 6, 1)


def test_a_line_is_json_and_comes_back() -> None:
    encoded = encode_line(line(entity='a/"quoted"/Ünïcode'))
    document = json.loads(encoded)
    assert document["v"] == 1
    assert document["from"] == "2026-11-16T07:00:00.000Z"
    assert document["entity"] == 'a/"quoted"/Ünïcode'
    found = decode_line(encoded[:-1])
    assert found is not None
    assert found.document() == line(entity='a/"quoted"/Ünïcode').document()
    assert found.day == "2026-11-16"


def test_every_damaged_byte_is_noticed() -> None:
    encoded = encode_line(line())[:-1]
    for at in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[at] ^= 0x11
        assert decode_line(bytes(damaged)) is None, at
        assert decode_line(encoded[:at]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"kind": "gift"},
        {"operations": -1},
        {"operations": True},
        {"units": 1.5},
        {"namespace": 7},
        {"from": "yesterday"},
        {"from": 7},
        {"empty": None},
    ],
)
def test_what_is_not_ours_is_not_read(change: dict[str, object]) -> None:
    document = {"v": 1, **line().document(), **change}
    if change != {"v": 2}:
        assert read_document(document) is None
    text = json.dumps(document, separators=(",", ":"))[:-1]
    from zlib import crc32

    assert decode_line(f'{text},"crc":"{crc32(text.encode()):08x}"}}'.encode()) is None
    assert read_document([]) is None


def test_times() -> None:
    assert iso(START_MS + 7) == "2026-11-16T07:00:00.007Z"
    assert parse_iso("2026-11-16T08:00:00+01:00") == START_MS
    assert parse_iso("2026-11-16") == START_MS - 7 * HOUR_MS
    with pytest.raises(ValueError):
        parse_iso("noon")


def test_sums_of_hours_and_days() -> None:
    lines = [line(), line(START_MS + 60_000), line(START_MS + HOUR_MS), line(entity="other")]
    hours = summed(lines)
    assert [(each.entity, each.operations) for each in hours] == [
        ("orders", 6),
        ("other", 3),
        ("orders", 3),
    ]
    assert (hours[0].from_ms, hours[0].to_ms) == (START_MS, START_MS + 61_000)
    days = summed(lines, DAY_MS)
    assert [(each.units, each.empty) for each in days] == [(18, 3), (6, 1)]
    assert lines[0].operations == 3, "what was added up stays as it was"
