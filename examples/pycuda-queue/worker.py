"""The worker of before.py as a stage. The queue, the sign to stop and the order of results are orchestra's.

Try it out with `python worker.py --check readings=float32:64`.
"""

import numpy as np
import orchestra
from gpu import backend


@orchestra.stage(batch=32, gpu=True, inputs={"readings": ("float32", [64])}, outputs={"calibrated": ("float32", [64])})
class Worker:
    def __init__(self):
        # What stood before the loop: once in each process.
        self.calibrate = backend()

    def __call__(self, readings):
        # What stood in the loop: a job. PyCUDA and CuPy copy from memory that lies in one piece.
        return {"calibrated": self.calibrate(np.ascontiguousarray(readings))}
