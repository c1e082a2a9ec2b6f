"""Simulated surroundings for tests: public, so that users can break their own systems with them."""

from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

__all__ = ["CrashMode", "PowerCut", "SimDisk"]
