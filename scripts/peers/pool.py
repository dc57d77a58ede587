"""The peer `pool`: processes that each decode on a few threads and run a session of their own, with what made it fastest.

While one batch runs, the threads of the same process decode the next one: Pillow, OpenCV and ONNX Runtime all release Python's lock.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import common


def work(task: common.Task, asked, tasks, results, ready) -> None:
    """One process: takes ranges of files from `tasks` until a None, gives the lines of each batch to `results`."""
    session = common.open_session(task, asked.session_threads)
    load = common.LOADERS[asked.loader]

    def fill(path: str, row: np.ndarray) -> None:
        common.normalise_into(task, load(task, path), row)

    threads = ThreadPoolExecutor(asked.threads) if asked.threads else None
    common.run(session, np.zeros((1, *task.row), np.float32))
    ready.wait()

    def begin(first: int):
        files = task.files[first : first + asked.batch]
        rows = np.empty((len(files), *task.row), np.float32)
        if threads:
            return first, files, rows, [threads.submit(fill, path, row) for path, row in zip(files, rows)]
        for path, row in zip(files, rows):
            fill(path, row)
        return first, files, rows, []

    def finish(batch) -> None:
        first, files, rows, loading = batch
        for one in loading:
            one.result()
        results.put(common.records(task, first, files, common.run(session, rows)))

    ahead = deque()
    while (first := tasks.get()) is not None:
        ahead.append(begin(first))
        if len(ahead) > (1 if threads else 0):
            finish(ahead.popleft())
    while ahead:
        finish(ahead.popleft())
    results.put(None)


def work_or_say(task: common.Task, asked, tasks, results, ready) -> None:
    """`work`, but a process that fails tells the others, which would wait for it."""
    try:
        work(task, asked, tasks, results, ready)
    except BaseException as error:
        ready.abort()
        results.put(error)
        raise


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2, help="decoding threads per process; 0: decode between two batches")
    parser.add_argument("--session-threads", type=int, default=1)
    parser.add_argument("--loader", choices=common.LOADERS, default="pillow")
    asked = parser.parse_args()
    task = common.read_task(asked.workflow)

    # ONNX Runtime has not started a thread in this process yet, so fork is safe, and it starts faster than spawn.
    context = multiprocessing.get_context("fork")
    tasks, results, ready = context.SimpleQueue(), context.SimpleQueue(), context.Barrier(asked.processes + 1)
    workers = [context.Process(target=work_or_say, args=(task, asked, tasks, results, ready)) for _ in range(asked.processes)]
    for worker in workers:
        worker.start()
    ready.wait()
    stopwatch = common.Stopwatch()

    # The queue is a pipe: a thread fills it, because it holds only so many numbers.
    firsts = [*range(0, len(task.files), asked.batch), *[None] * asked.processes]
    with ThreadPoolExecutor(1) as feeder, open(asked.output, "w") as output:
        feeding = feeder.submit(lambda: [tasks.put(first) for first in firsts])
        n_working = asked.processes
        while n_working:
            lines = results.get()
            if isinstance(lines, BaseException):
                for worker in workers:
                    worker.kill()
                print(f"a process failed: {lines!r}", file=sys.stderr)
                # The feeder may wait for a reader that is gone: leave without it.
                os._exit(1)
            if lines is None:
                n_working -= 1
            else:
                output.write(lines)
        feeding.result()
    stopwatch.finish(len(task.files))
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
