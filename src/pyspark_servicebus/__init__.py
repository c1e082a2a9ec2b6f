"""Where Spark looks for `format("servicebus")`: a module `pyspark_<format>` with `DefaultSource`.

Nothing else is here; the source is `twinbus.pipeline.source.data_source`.
"""

from twinbus.pipeline.source.data_source import ServiceBusDataSource

__all__ = ["DefaultSource"]


class DefaultSource(ServiceBusDataSource):
    """The same source, under the name that Spark asks for."""
