"""Anything at all as a fault: an answer of one sentence, or a fault that can be cleared."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import ArgumentInvalid, ServiceError
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.faults.faults import Faults
from twinbus.gateway.faults.kinds import KINDS
from twinbus.server.http.operations.faults import read_wanted

pytestmark = pytest.mark.proves("M-11")

SENTENCE_CHARS_MAX = 400
NOW = Now(0, 0)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=100),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
near_misses = st.fixed_dictionaries(
    {"kind": st.sampled_from([*KINDS]) | anything},
    optional={
        "namespace": st.sampled_from(["first", "FIRST", "second"]) | anything,
        "entity": st.sampled_from(["orders", "wide", "../orders", "second:orders"]) | anything,
        "partition": st.integers(-2, 17) | st.lists(st.integers(-2, 17)) | anything,
        "store": st.integers(-2, 3) | anything,
        "broker": st.integers(-2, 3) | anything,
        "duration_s": st.floats() | st.integers() | anything,
        "probability": st.floats() | anything,
        "delay_ms": st.integers() | anything,
        "x": anything,
    },
)


class World:
    """A few entities, two stores, two brokers."""

    store_count = broker_count = 2

    def __init__(self) -> None:
        self._directory = Directory()
        self._directory.add("queue", "orders", QueueDescription(), [Part(0, 1, 0)])
        parts = [Part(0, 2 + p, p) for p in range(16)]
        self._directory.add("queue", "wide", QueueDescription(), parts)

    def prefix(self, namespace: str) -> str | None:
        return "" if namespace.lower() == "first" else None

    def find(self, name: str) -> Entity | None:
        return self._directory.find(name)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes(body: bytes) -> None:
    try:
        read_wanted(body)
    except ArgumentInvalid as error:
        assert len(str(error)) < SENTENCE_CHARS_MAX


@given(near_misses)
def test_any_json(document: dict[str, Any]) -> None:
    faults = Faults(World(), lambda: 0.5)
    try:
        fault = faults.add(read_wanted(json.dumps(document).encode()), NOW)
    except ServiceError as error:
        assert len(str(error)) < SENTENCE_CHARS_MAX
        assert faults.all() == []
        return
    assert 0 < fault.probability <= 1
    assert fault.ends_ms is None or fault.ends_ms > 0
    assert fault.kind.is_once or faults.all() == [fault]
    faults.clear(fault)
    assert not faults.active
