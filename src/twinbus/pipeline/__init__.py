"""The data pipeline on Spark: `format("servicebus")`, and the jobs that stand on it.

    from twinbus import pipeline

    pipeline.register(spark)
    orders = spark.read.format("servicebus").option("connectionString", …)…

Needs the extra `spark` (pip install 'twinbus[spark]'); nothing else of twinbus does.
"""
