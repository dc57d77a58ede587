"""What one begins with: a queue to a worker process that has the GPU, and `None` as the sign to stop. worker.py is the same as a stage.

    python before.py      # needs what worker.py needs
"""

import multiprocessing
from pathlib import Path

import numpy as np

READINGS = Path(__file__).resolve().parent / "../post-sum/readings.npy"


def work(jobs, results):
    from gpu import backend

    calibrate = backend()  # once: context, compiler
    while (job := jobs.get()) is not None:
        at, rows = job
        results.put((at, calibrate(rows)))


def main():
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(maxsize=4), context.Queue()
    worker = context.Process(target=work, args=(jobs, results))
    worker.start()
    readings = np.load(READINGS)
    batches = np.array_split(readings, 20)
    for at, rows in enumerate(batches):
        jobs.put((at, rows))
    jobs.put(None)  # no more
    # If the worker dies, this waits for ever, and nobody knows which jobs were done.
    done = dict(results.get() for _ in batches)
    worker.join()
    print(f"{sum(len(done[at]) for at in range(len(batches)))} readings")


if __name__ == "__main__":
    main()
