"""Synchronous writes that no thread waits for: Linux's io_uring, through its system calls.

A thread that waits for a disk must get Python's lock back afterwards, from a busy loop.  The kernel
needs no lock: it gets the write, writes and syncs in parallel to the loop, and signals completion
through an eventfd.

    io_uring_setup   ──▶ two rings in shared memory, for one entry each: what to do, what came of it
    io_uring_enter   ──▶ do what the first ring says
    eventfd          ◀── the second ring has something

One write is under way at a time, so the entry is always the same one, and nobody else moves the
first ring while we write to it.  Indices grow for ever, modulo 2³².  The kernel reads our entry
inside our own system call, and we read its answer after reading the eventfd: that is all the order
that either side needs of the memory.

Containers often forbid these calls.  Then there is no ring, which is not an error: a commit can be
written in other ways.
"""

import ctypes
import errno
import mmap
import os
import struct
from typing import Final

_SETUP: Final = 425  # numbers of the calls, on every architecture
_ENTER: Final = 426
_REGISTER: Final = 427
_REGISTER_EVENTFD: Final = 4
_SINGLE_MMAP: Final = 1  # both rings in one piece of memory: Linux 5.4
_ENTRIES_OFFSET: Final = 0x1000_0000  # where the entries are mapped
_ENTRY_SIZE: Final = 64
_PARAMETERS_SIZE: Final = 120
_OFFSETS: Final = (40, 80)  # of the places of both rings' fields, in the parameters
_WRITEV: Final = 2
_ASYNC: Final = 16  # by a kernel thread from the beginning: the call must not wait itself
_BUFFERS_MAX: Final = 8

_INDEX: Final = struct.Struct("<I")
_FIELDS: Final = struct.Struct("<7I")
# opcode, flags, priority, file, offset, address and count of buffers, flags of the write; the rest
_ENTRY: Final = struct.Struct("<BBHiQQII32x")
_ANSWER: Final = struct.Struct("<QiI")  # whose, bytes or −errno, flags
_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)


class WriteRing:
    """One write at a time, by the kernel alone."""

    def __init__(self) -> None:
        """OSError: this system has none, or does not allow it."""
        if not _DSYNC or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, "no synchronous writes, or no eventfd")
        # PyDLL keeps Python's lock: none of the calls waits for anything.
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = [ctypes.c_long] * 7
        parameters = ctypes.create_string_buffer(_PARAMETERS_SIZE)
        self._fd = self._call(_SETUP, 1, ctypes.addressof(parameters))
        self._event = -1
        try:
            self._map(bytes(parameters))
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            event = ctypes.c_int(self._event)
            self._call(_REGISTER, self._fd, _REGISTER_EVENTFD, ctypes.addressof(event), 1)
        except OSError:
            self.close()
            raise
        self._places = (ctypes.c_size_t * (2 * _BUFFERS_MAX))()  # address and length of each buffer
        self._buffers: list[bytes] = []  # must stay where they are until they are written

    def _map(self, parameters: bytes) -> None:
        (features,) = _INDEX.unpack_from(parameters, 20)
        if not features & _SINGLE_MMAP:
            raise OSError(errno.ENOSYS, "an io_uring older than Linux 5.4")
        _, self._tail, _, _, _, _, array = _FIELDS.unpack_from(parameters, _OFFSETS[0])
        fields = _FIELDS.unpack_from(parameters, _OFFSETS[1])
        self._answer_head, self._answer_tail, mask, _, _, self._answers, _ = fields
        size = max(array + 4, self._answers + 2 * _ANSWER.size)
        self._rings = mmap.mmap(self._fd, size)
        self._entries = mmap.mmap(self._fd, _ENTRY_SIZE, offset=_ENTRIES_OFFSET)
        (self._mask,) = _INDEX.unpack_from(self._rings, mask)
        _INDEX.pack_into(self._rings, array, 0)  # the next entry is entry 0, always

    def _call(self, number: int, *arguments: int) -> int:
        result: int = self._syscall(number, *arguments, *[0] * (6 - len(arguments)))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def fileno(self) -> int:
        """Can be read from when a write has ended."""
        return self._event

    def begin(self, fd: int, buffers: list[bytes], offset: int) -> None:
        """Write them, and sync; OSError: it has not begun."""
        places = self._places
        for number, buffer in enumerate(buffers):
            places[2 * number] = ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
            places[2 * number + 1] = len(buffer)
        self._buffers = buffers
        address, count = ctypes.addressof(places), len(buffers)
        _ENTRY.pack_into(self._entries, 0, _WRITEV, _ASYNC, 0, fd, offset, address, count, _DSYNC)
        (tail,) = _INDEX.unpack_from(self._rings, self._tail)
        _INDEX.pack_into(self._rings, self._tail, (tail + 1) & 0xFFFF_FFFF)
        self._call(_ENTER, self._fd, 1)

    def result(self) -> int | None:
        """Bytes that are durable, or −errno; None while it is under way."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return None
        (head,) = _INDEX.unpack_from(self._rings, self._answer_head)
        (tail,) = _INDEX.unpack_from(self._rings, self._answer_tail)
        if head == tail:
            return None
        place = self._answers + _ANSWER.size * (head & self._mask)
        _, result, _ = _ANSWER.unpack_from(self._rings, place)
        _INDEX.pack_into(self._rings, self._answer_head, (head + 1) & 0xFFFF_FFFF)
        self._buffers = []
        return int(result)

    def close(self) -> None:
        """Nothing may be under way."""
        for fd in (self._fd, self._event):
            if fd >= 0:
                os.close(fd)
        self._fd = self._event = -1


def open_ring() -> WriteRing | None:
    """One for somebody who can do without."""
    try:
        return WriteRing()
    except (OSError, AttributeError):  # no such call, not allowed, no libc that has `syscall`
        return None
