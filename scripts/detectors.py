"""Fetches detectors as their authors have exported them, for tests: they lie in Python packages, of which nothing is installed or run.

    python detectors.py      # prints their folder, in the cache; exit code 1: they cannot be had

`common_det.onnx` of ddddocr 1.6.1 (MIT, 76 MB to fetch) is a YOLOX model that finds signs in captchas. `320n.onnx` of nudenet 3.4.2 (11 MB) is a YOLOv8
model for content moderation, exported by Ultralytics 8.2 with its metadata; its licence, AGPL-3.0, allows its use, and nothing of it is handed on.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples/read-text"))
from fetch import Wheel, fetch

WHEELS = [
    Wheel(
        package="ddddocr==1.6.1",
        file="ddddocr-1.6.1-py3-none-any.whl",
        sha256="c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
        folder="ddddocr",
        models={"common_det.onnx": "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6"},
    ),
    Wheel(
        package="nudenet==3.4.2",
        file="nudenet-3.4.2-py3-none-any.whl",
        sha256="5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        folder="nudenet",
        models={"320n.onnx": "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"},
    ),
]


def main():
    cache = os.environ.get("ORCHESTRA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestra"
    folder = Path(cache) / "detectors"
    for wheel in WHEELS:
        problem = fetch(wheel, folder)
        if problem:
            print(problem, file=sys.stderr)
            return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
