"""Fetches the three models of this example into `models/`: those of the Python package rapidocr 3.10.0 (Apache-2.0), with pip.

    python fetch.py [--wheel FILE]      # exit code 0: the models are there, 1: they cannot be had

The package, 27 MB, comes from the index that pip is set up with; nothing of it is installed or run. A wheel and models whose digest is not
the one below are refused. Where there is no network, copy the wheel from a machine that has one and name it with --wheel.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "rapidocr==3.10.0"
WHEEL = "rapidocr-3.10.0-py3-none-any.whl"
WHEEL_SHA256 = "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050"
MODELS = {
    "PP-OCRv6_det_small.onnx": "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    "PP-OCRv6_rec_small.onnx": "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx": "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
}
FOLDER = Path(__file__).resolve().parent / "models"


def digest(path):
    """SHA-256 of a file, or None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def download(folder):
    """Has pip download the wheel into a folder. Raises RuntimeError with what to do."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        ended = subprocess.run([*pip, "--dest", str(folder), PACKAGE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pip could not download {PACKAGE} within 10 minutes; check the network, or name the wheel with --wheel") from None
    if "No module named pip" in ended.stderr:
        raise RuntimeError(f"{sys.executable} has no pip: apt install python3-pip, or name the wheel with --wheel")
    if ended.returncode != 0:
        said = "".join(f"\n  pip: {line}" for line in ended.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"pip could not download {PACKAGE}; check the network, or name the wheel with --wheel{said}")
    return folder / WHEEL


def unpack(wheel):
    """Writes the models of a wheel whose digest fits."""
    found = digest(wheel)
    if found is None:
        raise RuntimeError(f"there is no {wheel}")
    if found != WHEEL_SHA256:
        raise RuntimeError(f"{wheel} is not the wheel of {PACKAGE} that this example was made with: SHA-256 {found}, expected {WHEEL_SHA256}")
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in MODELS:
            # Several may fetch at once: a model is there as a whole or not at all.
            with tempfile.NamedTemporaryFile(dir=FOLDER, delete=False) as file:
                file.write(archive.read(f"rapidocr/models/{name}"))
            Path(file.name).chmod(0o644)
            Path(file.name).replace(FOLDER / name)


def main():
    parser = argparse.ArgumentParser(description="Fetch the models of this example.")
    parser.add_argument("--wheel", type=Path, help=f"{WHEEL}, where pip has no network")
    asked = parser.parse_args()
    if all(digest(FOLDER / name) == sha256 for name, sha256 in MODELS.items()):
        return 0
    try:
        if asked.wheel:
            unpack(asked.wheel)
        else:
            with tempfile.TemporaryDirectory() as folder:
                unpack(download(Path(folder)))
    except (RuntimeError, OSError, zipfile.BadZipFile) as error:
        print(f"the models cannot be fetched: {error}", file=sys.stderr)
        return 1
    wrong = [name for name, sha256 in MODELS.items() if digest(FOLDER / name) != sha256]
    if wrong:
        print(f"wrong digests in {FOLDER}: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print(f"{len(MODELS)} models in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
