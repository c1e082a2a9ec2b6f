"""The rehearsed outage: a pair of namespaces, an application, a failure, and a verdict.

    plan         who sends what where, and which scenes follow each other        (pure)
    ledger       what was accepted, and what arrived                             (pure)
    judging      the one against the other; the verdict                          (pure)
    events       what happens, in words                                          (pure)
    timeline     what was measured along the way                                 (pure)
    report       all of it as one HTML file                                      (pure)
    stage        the two namespaces, each a `twinbus serve`, and how one fails
    application  senders through the pair and receivers, threads on the official SDK
    clerks       who brings the backlog home, reconciles and prices: Spark, or Python alone
    spark_main   the process in which Spark does it
    pricing      what was metered, as a bill
    screen       what a person sees meanwhile: lines, or the picture of `live`
    waiting      waiting that a Ctrl-C ends
    director     the scenes, one after the other

Everything is real, the servers and the `kill -9` too.  It must leave nothing behind but the report.
"""

__all__ = ["director", "judging", "plan", "report", "screen", "waiting"]
