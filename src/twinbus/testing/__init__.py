"""What tests stand on: simulated disks and clocks, and a real server process to torment.

Public, so that people can test their own code against twinbus the way twinbus tests itself.
"""

from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

__all__ = ["CrashMode", "PowerCut", "SimDisk"]
