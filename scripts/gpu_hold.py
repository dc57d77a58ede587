"""Holds so many MiB of the first GPU that it sees for so many seconds, by the driver's library, as a command that computes there does. Standard library only.

    gpu_hold.py MIB SECONDS
"""

import ctypes
import sys
import time


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    calls = {
        "cuInit": (0,),
        "cuDeviceGet": (ctypes.byref(device), 0),
        "cuDevicePrimaryCtxRetain": (ctypes.byref(context), device),
        "cuCtxSetCurrent": (context,),
        "cuMemAlloc_v2": (ctypes.byref(place), ctypes.c_size_t(int(sys.argv[1]) << 20)),
    }
    for name, arguments in calls.items():
        if code := getattr(cuda, name)(*arguments):
            sys.exit(f"{name} gives {code}")
    time.sleep(float(sys.argv[2]))


main()
