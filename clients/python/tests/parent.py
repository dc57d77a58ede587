"""The side of orchestra of the worker protocol, written from docs/guide/worker-protocol.md alone."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

PACKAGE = Path(__file__).resolve().parent.parent
TYPES = ["f32", "f16", "i64", "i32", "u8", "bool", "f64", "i16"]
HEARTBEAT = 5


def integer(n: int) -> bytes:
    """In the shortest form."""
    if n < 251:
        return bytes([n])
    tag, size = (251, 2) if n < 1 << 16 else (252, 4) if n < 1 << 32 else (253, 8)
    return bytes([tag]) + n.to_bytes(size, "little")


def text(content: Any) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return integer(len(data)) + data


def listed(items: Sequence[bytes]) -> bytes:
    return integer(len(items)) + b"".join(items)


def span(name: str, dtype: str, shape: List[int], offset: int, row_bytes: int) -> bytes:
    dims = listed([integer(0) + integer(size) for size in shape])
    return text(name) + integer(TYPES.index(dtype)) + dims + integer(1) + integer(offset) + integer(row_bytes)


def load(
    outputs: List[Dict[str, Any]],
    inputs: Sequence[bytes] = (),
    places: Sequence[Optional[bytes]] = (),
    values: Sequence[Dict[str, Any]] = (),
    slot_bytes: Tuple[int, int] = (0, 0),
    loop: Optional[Dict[str, Any]] = None,
) -> bytes:
    """`Load` of a worker on the CPU with two slots of 8 rows and one thread."""
    spec = text(json.dumps({"outputs": outputs, "values": list(values), "loop": loop}))
    optional = [integer(0) if place is None else integer(1) + place for place in places]
    numbers = integer(1) + integer(1) + integer(0) + integer(8) + integer(2)  # Threads, streams, padding, rows, slots.
    frame = integer(0) + spec + integer(0) + numbers + listed(list(inputs)) + listed(optional)
    return frame + integer(slot_bytes[0]) + integer(slot_bytes[1]) + integer(1 << 20)


def run(batch: int, rows: int, slot: int = 0, first: int = 0, values: Optional[bytes] = None) -> bytes:
    kind = 1 if values is None else 2
    frame = b"".join(map(integer, (kind, batch, 1, slot, 1 - slot, first, rows)))
    return frame if values is None else frame + text(values)


class Frame:
    """Reads what a worker has sent."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def integer(self) -> int:
        tag = self.data[self.at]
        size = {251: 2, 252: 4, 253: 8}.get(tag, 0)
        start, self.at = self.at + 1, self.at + 1 + size
        return int.from_bytes(self.data[start : self.at], "little") if size else tag

    def blob(self) -> bytes:
        n = self.integer()
        self.at += n
        return self.data[self.at - n : self.at]

    def text(self) -> str:
        return self.blob().decode()

    def is_at_end(self) -> bool:
        return self.at == len(self.data)


class Parent:
    """A worker process with its socket and slots; a context manager that leaves no process."""

    def __init__(self, command: Sequence[str], bytes_of_inputs: int = 4096, bytes_of_outputs: int = 4096) -> None:
        self.socket, theirs = socket.socketpair()
        files = [os.memfd_create("inputs"), os.memfd_create("outputs")]
        for file, size in zip(files, (bytes_of_inputs, bytes_of_outputs)):
            os.ftruncate(file, size)
        self.inputs, self.outputs = (mmap.mmap(file, 0) for file in files)
        given = [os.dup(theirs.fileno()), *map(os.dup, files)]
        moved = [os.dup2(fd, 100 + n, inheritable=False) for n, fd in enumerate(given)]

        def place() -> None:
            for n, fd in enumerate(moved):
                os.dup2(fd, 3 + n)

        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1", "ORCHESTRA_BUILD": "tested"}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        self.process = subprocess.Popen(
            command, preexec_fn=place, pass_fds=(3, 4, 5), env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for fd in (*files, *given, *moved):
            os.close(fd)
        theirs.close()
        self.socket.settimeout(60)

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(frame)) + frame)

    def receive(self) -> Frame:
        """The next frame that is no heartbeat."""
        while True:
            (length,) = struct.unpack("<I", self._exactly(4))
            frame = self._exactly(length)
            if frame[0] != HEARTBEAT:
                return Frame(frame)

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            part = self.socket.recv(n - len(data))
            if not part:
                raise EOFError("the worker has hung up")
            data += part
        return data


def installed(script: str) -> List[str]:
    """The command of a worker that finds the package on `PYTHONPATH`."""
    return [sys.executable, "-m", "orchestra_stages", "worker", script]


def embedded_text() -> str:
    """The program that the orchestra binary hands to an interpreter."""
    shipped = [PACKAGE / "orchestra/__init__.py", *sorted((PACKAGE / "orchestra_stages").glob("*.py"))]
    files = {str(file.relative_to(PACKAGE)): file.read_text() for file in shipped if file.name not in UNSHIPPED}
    return (PACKAGE / "orchestra_stages/embedded.py").read_text() + f"\nrun({json.dumps(files)})\n"


#: What a worker never imports.
UNSHIPPED = ("check.py", "embedded.py")
