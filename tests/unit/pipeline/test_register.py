"""Registering the format says early which Spark it needs."""

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_servicebus import DefaultSource
from twinbus import pipeline
from twinbus.errors import ConfigError
from twinbus.pipeline.source.data_source import ServiceBusDataSource


class Session:
    """As much of a session as is asked."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.registered: list[object] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)


@pytest.mark.parametrize("version", ["4.3.0", "4.3.11"])
def test_registered(version: str) -> None:
    session: Any = Session(version)
    pipeline.register(session)
    assert session.registered == [ServiceBusDataSource]


@pytest.mark.parametrize("version", ["3.5.1", "4.2.0", "4.30.0", "5.0.0"])
def test_another_spark(version: str) -> None:
    session: Any = Session(version)
    with pytest.raises(ConfigError, match=f"this is Spark {version}; .* need 4.3"):
        pipeline.register(session)
    assert session.registered == []


def test_what_spark_finds_by_itself() -> None:
    assert issubclass(DefaultSource, ServiceBusDataSource)
    assert DefaultSource.name() == "servicebus"
