"""Broker processes, and the broker inside this one: started, watched, ended.

processes.py       Brokers: all broker processes; does what the supervisor decides
├ supervisor.py    decides, without I/O: who runs which store, who is to be killed
├ process_run.py   what has been heard of each process, and the evidence of its end
├ process.py       starts, speaks to and ends one process
├ diagnostics.py   writes the evidence down
├ health.py        how brokers and stores are doing, for `/health` and the throttle
└ fault_effects.py what faults on purpose do to processes and their disks
worker.py          the broker process itself, at the other end of the socket
in_process.py      LocalBroker: in place of all this, where one broker has one store
"""

__all__ = ["in_process", "processes", "worker"]
