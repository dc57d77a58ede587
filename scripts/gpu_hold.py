"""Holds so many MiB of the first GPU that it sees for so many seconds, by the driver's library, as a command that computes there does; with `-MIB` all that is
free but so many. Says `held` once it has them. Standard library only.

    gpu_hold.py MIB SECONDS
"""

import ctypes
import sys
import time


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            sys.exit(f"{name} gives {code}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    size = int(sys.argv[1]) << 20
    if size < 0:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        size += free.value
    if size > 0:
        call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))


main()
