"""What orchestra starts: `describe SCRIPT [STAGE]` while it plans, `worker SCRIPT [STAGE]` in a run; of a source
`describe-source` and `list`, of a sink `describe-sink` and `write`."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import struct
import sys


def main() -> None:
    answers_to = os.dup(1)
    os.dup2(2, 1)  # What a script prints goes to the log.
    faulthandler.enable(all_threads=False)
    if "ORCHESTRA_CONFINED" in os.environ:
        forbid_programs()
    mode, *arguments = sys.argv[1:]
    if mode == "describe":
        from .describe import describe

        describe(answers_to, *arguments)
    elif mode == "describe-source":
        from .listing import describe

        describe(answers_to, *arguments)
    elif mode == "list":
        from .listing import list_rows

        list_rows(*arguments)
    elif mode == "describe-sink":
        from .writing import describe

        describe(answers_to, *arguments)
    elif mode == "write":
        from .writing import write_parts

        write_parts(*arguments)
    else:
        from .worker import serve

        serve(*arguments)


def forbid_programs() -> None:
    """From now on `execve` and `execveat` fail with EPERM, by a seccomp filter.

    A program that a thread starts would outlive the run, since the kernel forgets whose end it dies with.
    """
    execve, execveat = {"x86_64": (59, 322), "aarch64": (221, 281)}[os.uname().machine]
    load_word, jump_if_equal, answer = 0x20, 0x15, 6
    allow, fail_with_eperm = 0x7FFF0000, 0x50001
    steps = [
        (load_word, 0, 0, 0),  # The number of the call.
        (jump_if_equal, 2, 0, execve),
        (jump_if_equal, 1, 0, execveat),
        (answer, 0, 0, allow),
        (answer, 0, 0, fail_with_eperm),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    set_seccomp, filter_mode = 22, 2
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    if ctypes.CDLL(None).prctl(set_seccomp, filter_mode, program, 0, 0):
        sys.exit("the kernel has no filter of calls")


if __name__ == "__main__":
    main()
