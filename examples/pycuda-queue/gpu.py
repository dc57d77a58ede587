"""y = 2.5 x + 1 for arrays of numpy, by PyCUDA, CuPy or numpy: what the worker of a queue does for each job."""

import os
import sys

os.environ.setdefault("CUPY_CACHE_IN_MEMORY", "1")  # A confined worker writes no files.

import numpy as np

KERNEL = """
extern "C" __global__ void calibrate(const float *x, float *y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.5f * x[i] + 1.0f;
}
"""
BLOCK = 256


def pycuda():
    import pycuda.autoinit  # noqa: F401  Makes the context of this process.
    import pycuda.driver as cuda
    from pycuda.compiler import SourceModule

    # It starts `nvcc`.
    function = SourceModule(KERNEL, no_extern_c=True).get_function("calibrate")

    def calibrate(x):
        y = np.empty_like(x)
        grid = (-(-x.size // BLOCK), 1)
        function(cuda.In(x), cuda.Out(y), np.int64(x.size), block=(BLOCK, 1, 1), grid=grid)
        return y

    return calibrate


def cupy():
    import cupy

    cupy.cuda.runtime.getDeviceCount()
    function = cupy.RawKernel(KERNEL, "calibrate")
    function.compile()

    def calibrate(x):
        on_device = cupy.asarray(x)
        y = cupy.empty_like(on_device)
        function((-(-x.size // BLOCK),), (BLOCK,), (on_device, y, np.int64(x.size)))
        return cupy.asnumpy(y)

    return calibrate


def on_cpu():
    return lambda x: np.float32(2.5) * x + np.float32(1)


def backend():
    """The first that there is. A process to which no GPU is shown works with numpy; one that has a GPU and cannot use it is an error."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = []
    for make in () if visible == "" else (pycuda, cupy):
        try:
            calibrate = make()
            print(f"calibrates with {make.__name__}", file=sys.stderr)
            return calibrate
        except Exception as error:  # Not installed, no driver, no compiler.
            why.append(f"{make.__name__}: {type(error).__name__}: {error}")
    if visible and why:
        raise RuntimeError(f"the GPU {visible} cannot be used: {'; '.join(why)}")
    print("calibrates with numpy", file=sys.stderr)
    return on_cpu()
