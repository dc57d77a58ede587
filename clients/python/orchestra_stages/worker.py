"""A worker process: connects, loads the script, and answers runs until the parent hangs up.

The main thread reads, loads and runs. A second one sends heartbeats, and ends the process with the connection. Nothing
here imports numpy before the script is loaded.
"""

from __future__ import annotations

# Those marked F401 are for modules that are loaded later, when the folder of the script stands first in `sys.path`.
import contextlib  # noqa: F401
import ctypes  # noqa: F401
import mmap  # noqa: F401
import os
import select
import socket
import sys
import threading
import time
from typing import NoReturn, Optional

from . import script
from .errors import is_memory, words
from .wire import HEARTBEAT, HELLO, LOAD_FAILED, LOADED, PROTOCOL, Load, NoSense, Reader, Run, ints, text

_SOCKET = 3
_HEARTBEAT_MS = 250
_PAGE = 4096

# Exit codes.
_HUNG_UP, _LOAD_FAILED, _DEVICE_BROKEN, _NO_SENSE = 0, 69, 71, 76
#: What a reader raises for a frame of another kind, or one that is cut.
_NO_FRAME = (NoSense, IndexError, KeyError, ValueError)
# Classes of `LoadFailed`.
_PERMANENT, _OUT_OF_MEMORY = 2, 3


class Connection:
    """Frames from and to the parent."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=_SOCKET)
        self.lock = threading.Lock()
        self._read = self.socket.makefile("rb").read

    def send(self, frame: bytes) -> None:
        with self.lock:
            self.socket.sendall(len(frame).to_bytes(4, "little") + frame)

    def receive(self) -> Reader:
        """The next frame. Where there is none the parent is gone, and the process ends."""
        length = self._read(4) or os._exit(_HUNG_UP)
        return Reader(self._read(int.from_bytes(length, "little")))


class Heartbeats:
    """Beats four times a second, also while the script loads and runs."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Resident bytes, measured with each beat: after each batch it would cost more than a small batch.
        self.rss = 0
        threading.Thread(target=self._beat, daemon=True).start()

    def measure(self) -> int:
        with open("/proc/self/statm") as statm:
            self.rss = int(statm.read().split()[1]) * _PAGE
        return self.rss

    def _beat(self) -> None:
        poll = select.poll()
        poll.register(_SOCKET, select.POLLRDHUP)
        try:
            while not poll.poll(_HEARTBEAT_MS):
                self.measure()
                self.connection.send(ints(HEARTBEAT))
        finally:
            os._exit(_HUNG_UP)


def serve(path: str, name: Optional[str] = None) -> NoReturn:
    """Speaks the protocol for the stage `name` of the script, or for its only one."""
    connection = Connection()
    connection.send(_hello())
    heartbeats = Heartbeats(connection)
    frame, began = connection.receive(), time.perf_counter_ns()
    try:
        load = Load(frame)
    except _NO_FRAME:
        os._exit(_NO_SENSE)
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", str(load.threads))
    try:
        declaration = script.load(path, name)
        import numpy

        from .batches import Batches

        stage = Batches(load, declaration, lambda: heartbeats.rss)
    except BaseException as error:
        kind = _OUT_OF_MEMORY if is_memory(error) else _PERMANENT
        connection.send(ints(LOAD_FAILED, kind) + text(words(error)))
        os._exit(_LOAD_FAILED)
    engine = f"python {sys.version.split()[0]}, numpy {numpy.__version__}"
    provider = "cuda" if load.gpu else "cpu"
    loaded = ints(LOADED, 1) + text(provider) + ints(1) + text(engine)  # One node on one provider.
    connection.send(loaded + ints(0, time.perf_counter_ns() - began, heartbeats.measure()))
    while True:
        try:
            run = Run(connection.receive())
        except _NO_FRAME:
            os._exit(_NO_SENSE)
        answer = stage.run(run)
        connection.send(answer.frame)
        if answer.is_broken:
            os._exit(_DEVICE_BROKEN)


def _hello() -> bytes:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = ints(0) if visible is None else ints(1) + text(visible)
    return ints(HELLO, PROTOCOL) + text(os.environ.get("ORCHESTRA_BUILD", "")) + ints(os.getpid()) + devices
