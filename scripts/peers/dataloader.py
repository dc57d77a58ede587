"""The peer `dataloader`: torch.utils.data.DataLoader prepares batches in worker processes, one ONNX Runtime session runs them."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import common


class Pictures(Dataset):
    """Prepared pictures, f32 [channels, height, width], by number."""

    def __init__(self, task: common.Task, loader: str) -> None:
        self.task = task
        self.loader = loader

    def __len__(self) -> int:
        return len(self.task.files)

    def __getitems__(self, indices: list[int]) -> np.ndarray:
        """A whole batch at once, which saves the copy that putting single rows together would cost."""
        rows = np.empty((len(indices), *self.task.row), np.float32)
        load = common.LOADERS[self.loader]
        for row, index in zip(rows, indices):
            common.normalise_into(self.task, load(self.task, self.task.files[index]), row)
        return rows


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--session-threads", type=int, default=1)
    parser.add_argument("--no-spin", action="store_true", help="idle threads of the session sleep instead of spinning")
    parser.add_argument("--loader", choices=common.LOADERS, default="pillow")
    asked = parser.parse_args()
    task = common.read_task(asked.workflow)

    torch.set_num_threads(1)
    batches = DataLoader(
        Pictures(task, asked.loader),
        batch_size=asked.batch,
        num_workers=asked.workers,
        prefetch_factor=4 if asked.workers else None,
        collate_fn=torch.from_numpy,
    )
    session = common.open_session(task, asked.session_threads, spin=not asked.no_spin)
    common.run(session, np.zeros((1, *task.row), np.float32))
    stopwatch = common.Stopwatch()
    first = 0
    with open(asked.output, "w") as output:
        for rows in batches:
            files = task.files[first : first + len(rows)]
            output.write(common.records(task, first, files, common.run(session, rows.numpy())))
            first += len(files)
    stopwatch.finish(len(task.files))


if __name__ == "__main__":
    main()
