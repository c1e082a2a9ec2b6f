"""The rehearsed outage: a pair of namespaces, an application, a failure, and a verdict.

    plan         what is sent where, and the order of the scenes                 (pure)
    ledger       what was accepted, and what arrived                             (pure)
    spread       how messages without a key spread over partitions               (pure)
    judging      the one against the other; the verdict                          (pure)
    events       what happens, in words                                          (pure)
    timeline     what was measured along the way                                 (pure)
    report       all of it as one HTML file                                      (pure)
    stage        the two namespaces, each a `twinbus serve`, and how one fails
    lost_partition   one of the primary, which is down besides
    application  senders through the pair and receivers, threads on the official SDK
    clerks       drain the backlog, reconcile and price: Spark, or Python alone
    spark_main   the process in which Spark does it
    pricing      metered usage as a bill
    screen       what the user sees meanwhile: lines, or the picture of `live`
    waiting      waiting that a Ctrl-C ends
    director     the scenes, one after the other

Everything is real, including the servers and the `kill -9`.  It must leave only the report behind.
"""

__all__ = ["director", "judging", "plan", "report", "screen", "waiting"]
