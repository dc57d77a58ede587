"""The shared memory of inputs and outputs: descriptors 4 and 5 of a worker."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any

import numpy as np

from .wire import Load, Span

_PAGE = 4096
_INPUTS, _OUTPUTS = 4, 5
_PORTABLE, _READ_ONLY = 1, 8  # Flags of cuMemHostRegister: for every context; the GPU only reads.


class Slots:
    """One side, mapped; `None` stands for a side without tensors. Rows are views: nothing is copied."""

    def __init__(self, descriptor: int, slot_bytes: int, slots: int, protection: int) -> None:
        self.slot_bytes = slot_bytes
        size = -(-slot_bytes * slots // _PAGE) * _PAGE
        self.memory = mmap.mmap(descriptor, size, prot=protection) if slot_bytes else None

    @classmethod
    def inputs(cls, load: Load) -> Slots:
        return cls(_INPUTS, load.input_slot_bytes, load.slots, mmap.PROT_READ)

    @classmethod
    def outputs(cls, load: Load) -> Slots:
        return cls(_OUTPUTS, load.output_slot_bytes, load.slots, mmap.PROT_READ | mmap.PROT_WRITE)

    def rows(self, slot: int, span: Span, first: int, n_rows: int) -> np.ndarray:
        """`n_rows` rows of a tensor, `[n_rows, *span.shape]`, from row `first` of the slot on."""
        offset = self.slot_bytes * slot + span.offset + span.row_bytes * first
        return np.ndarray((n_rows, *span.shape), span.dtype, self.memory, offset)  # type: ignore[arg-type]


def lock_pages(inputs: Slots, outputs: Slots) -> None:
    """Page-locks the slots, so that the GPU copies from and to them by itself. If refused, copies only take longer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")

        def call(name: str, *arguments: Any) -> None:
            code = getattr(cuda, name)(*arguments)
            if code:
                raise OSError(f"{name} gives {code}")

        context, device = ctypes.c_void_p(), ctypes.c_int()
        call("cuInit", 0)
        call("cuCtxGetCurrent", ctypes.byref(context))
        call("cuDeviceGet", ctypes.byref(device), 0)
        if not context:  # The script has made none. What it makes later is mostly this one.
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            call("cuCtxSetCurrent", context)
        for side, memory, flags in (
            ("input", inputs.memory, _PORTABLE | _READ_ONLY),
            ("output", outputs.memory, _PORTABLE),
        ):
            if memory is not None:
                print(f"the {side} slots are {_lock(cuda, memory, flags)}")
    except (OSError, AttributeError) as error:
        print(f"the slots are not page-locked: {error}")


def _lock(cuda: ctypes.CDLL, memory: mmap.mmap, flags: int) -> str:
    start = np.frombuffer(memory, "u1").ctypes.data
    code = cuda.cuMemHostRegister_v2(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), flags)
    return f"not page-locked: cuMemHostRegister_v2 gives {code}" if code else "page-locked"


def is_device_broken() -> bool:
    """Whether an error stays with the CUDA context, so that all further calls fail.

    Without CUDA (code 3) or without a context (201) there is none.
    """
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL("libcuda.so.1").cuCtxSynchronize() not in (0, 3, 201)
    return False
