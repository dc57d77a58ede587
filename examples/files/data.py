"""Makes what this example works on: files of many kinds in `files/`, and the model of the package magika (Apache-2.0) in `models/`.

    python data.py [--files DIR] [--models DIR]

It needs Python 3.8 with the package magika, of which it copies the model; it does not run it.
"""

import argparse
import bz2
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import pickle
import plistlib
import random
import shutil
import sqlite3
import struct
import sys
import tarfile
import tempfile
import wave
import zipfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = "standard_v3_3"
SHA256 = "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"

TEXTS = {
    "page.html": "<!DOCTYPE html>\n<html><head><title>Tides</title><style>td { color: navy }</style></head>\n<body><h1>Tides</h1><table><tr><td>06:12</td><td>3.4 m</td></tr></table></body></html>\n",
    "style.css": "body { margin: 0; font-family: serif }\n.tide > td:hover { color: #024; padding: 2px 4px; border-bottom: 1px solid }\n@media print { nav { display: none } }\n",
    "app.js": "'use strict';\nconst tides = require('./tides');\nmodule.exports = async function next(port) {\n  const all = await tides.fetch(port);\n  return all.filter((t) => t.height > 2).map((t) => `${t.time} ${t.height}`);\n};\n",
    "tide.py": "import math\n\n\ndef height(hour, mean=2.0, range_=1.5):\n    \"\"\"Metres above the chart datum.\"\"\"\n    return mean + range_ * math.cos(2 * math.pi * hour / 12.42)\n\n\nif __name__ == '__main__':\n    print([round(height(h), 2) for h in range(24)])\n",
    "tide.c": "#include <math.h>\n#include <stdio.h>\n\nstatic double height(double hour) { return 2.0 + 1.5 * cos(2 * M_PI * hour / 12.42); }\n\nint main(void) {\n    for (int h = 0; h < 24; h++) printf(\"%d %.2f\\n\", h, height(h));\n    return 0;\n}\n",
    "tide.rs": "use std::f64::consts::PI;\n\n/// Metres above the chart datum.\nfn height(hour: f64) -> f64 {\n    2.0 + 1.5 * (2.0 * PI * hour / 12.42).cos()\n}\n\nfn main() {\n    (0..24).for_each(|h| println!(\"{h} {:.2}\", height(f64::from(h))));\n}\n",
    "tide.go": "package main\n\nimport (\n\t\"fmt\"\n\t\"math\"\n)\n\nfunc height(hour float64) float64 {\n\treturn 2 + 1.5*math.Cos(2*math.Pi*hour/12.42)\n}\n\nfunc main() {\n\tfor h := 0; h < 24; h++ {\n\t\tfmt.Println(h, height(float64(h)))\n\t}\n}\n",
    "Tide.java": "package org.example.tides;\n\nimport java.util.stream.IntStream;\n\npublic final class Tide {\n    static double height(double hour) {\n        return 2 + 1.5 * Math.cos(2 * Math.PI * hour / 12.42);\n    }\n\n    public static void main(String[] args) {\n        IntStream.range(0, 24).forEach(h -> System.out.println(h + \" \" + height(h)));\n    }\n}\n",
    "run.sh": "#!/bin/bash\nset -euo pipefail\nfor port in brest \"saint malo\"; do\n    curl -fsS \"https://example.org/tides?port=${port// /+}\" | jq -r '.[] | .time' >> \"$port.txt\"\ndone\n",
    "tides.sql": "CREATE TABLE tides (port TEXT NOT NULL, time TIMESTAMP, height REAL);\nINSERT INTO tides VALUES ('Brest', '2024-05-01 06:12', 3.4);\nSELECT port, max(height) FROM tides GROUP BY port HAVING count(*) > 2 ORDER BY 2 DESC;\n",
    "tides.csv": "port,time,height\n" + "".join(f"Brest,2024-05-01 {h:02}:00,{2 + h % 12 / 4:.2f}\n" for h in range(24)),
    "tides.json": json.dumps([{"port": "Brest", "hour": h, "height": 2 + h % 12 / 4} for h in range(24)], indent=1),
    "tides.jsonl": "".join(json.dumps({"port": "Brest", "hour": h, "height": 2 + h % 12 / 4}) + "\n" for h in range(24)),
    "tides.xml": "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<tides xmlns=\"urn:example:tides\">\n  <port name=\"Brest\"><tide time=\"06:12\" height=\"3.4\"/><tide time=\"18:31\" height=\"3.2\"/></port>\n</tides>\n",
    "chart.svg": "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 24 4\"><path d=\"M0 2C3 0 6 0 9 2S15 4 18 2\" fill=\"none\" stroke=\"navy\"/></svg>\n",
    "settings.toml": "[port]\nname = \"Brest\"\nlatitude = 48.38\n\n[tide]\nmean = 2.0\nconstituents = [\"M2\", \"S2\", \"N2\"]\n\n[[alarm]]\nabove = 4.5\n",
    "settings.yaml": "port:\n  name: Brest\n  latitude: 48.38\ntide:\n  mean: 2.0\n  constituents: [M2, S2, N2]\nalarms:\n  - above: 4.5\n    mail: true\n",
    "settings.ini": "[port]\nname=Brest\nlatitude=48.38\n\n[tide]\nmean=2.0\nconstituents=M2,S2,N2\n; an alarm\n[alarm]\nabove=4.5\n",
    "notes.md": "# Tides\n\nHow to read the table:\n\n1. Find the **port**.\n2. Take `height` at the hour.\n\n| hour | height |\n|---|---|\n| 6 | 3.4 |\n\nSee [the chart](chart.svg).\n",
    "letter.txt": "Dear harbour master,\n\nthe boat will be in on the morning tide, and we would be glad of a berth\nfor two nights. She draws six feet, and takes the ground without complaint.\n\nYours, and with thanks for the last time\n",
    "change.diff": "--- a/tide.py\n+++ b/tide.py\nfe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c -4,3 +4,3 @@\n def height(hour, mean=2.0, range_=1.5):\n-    return mean + range_ * math.sin(hour)\n+    return mean + range_ * math.cos(2 * math.pi * hour / 12.42)\n",
    "talk.srt": "1\n00:00:01,000 --> 00:00:03,500\nThe tide is in.\n\n2\n00:00:04,000 --> 00:00:06,000\nThen we can sail.\n",
    "Makefile": "CFLAGS += -O2 -Wall\n\ntide: tide.o\n\t$(CC) -o $@ $^ -lm\n\n.PHONY: clean\nclean:\n\trm -f tide tide.o\n",
    "Dockerfile": "FROM debian:12-slim\nRUN apt-get update && apt-get install -y gcc make && rm -rf /var/lib/apt/lists/*\nCOPY tide.c Makefile /src/\nWORKDIR /src\nRUN make tide\nENTRYPOINT [\"/src/tide\"]\n",
    "mail.eml": "Return-Path: <ada@example.org>\nReceived: from mail.example.org by mx.example.com; Wed, 1 May 2024 06:12:00 +0000\nFrom: Ada <ada@example.org>\nTo: harbour@example.com\nSubject: The morning tide\nDate: Wed, 1 May 2024 06:12:00 +0000\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\nA berth for two nights, please.\n",
    "empty": "",
    "blank.txt": " \n\t \n" * 40,
    "three.txt": "yes",
    "seven.txt": "  tide 7 \n" + " " * 500,
}


def packed(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zipped(members):
    def write(file):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in members:
                archive.writestr(name, TEXTS[name])

    return packed(write)


def tarred(file):
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("tide.c", "Makefile", "notes.md"):
            member = tarfile.TarInfo(name)
            member.size = len(TEXTS[name])
            archive.addfile(member, io.BytesIO(TEXTS[name].encode()))


def sound(file):
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(struct.pack("<2000h", *[(i * 997) % 20000 - 10000 for i in range(2000)]))


def png(side=32):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(side)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bmp(side=32):
    pixels = bytes((x * y * channel) % 256 for y in range(side) for x in range(side) for channel in (1, 2, 3))
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, len(pixels), 2835, 2835, 0, 0) + pixels


def database():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tides.sqlite"
        base = sqlite3.connect(path)
        base.executescript("CREATE TABLE tides (port TEXT, hour INT); INSERT INTO tides VALUES ('Brest', 6), ('Brest', 18);")
        base.close()
        return path.read_bytes()


def binaries():
    tides, code = TEXTS["tides.csv"].encode(), TEXTS["tide.py"]
    chance = random.Random(7)
    yield "tides.csv.gz", gzip.compress(tides, mtime=0)
    yield "tides.csv.bz2", bz2.compress(tides)
    yield "tides.csv.xz", lzma.compress(tides)
    yield "source.zip", zipped(["tide.c", "tide.rs", "Makefile"])
    yield "source.tar", packed(tarred)
    yield "horn.wav", packed(sound)
    yield "chart.png", png()
    yield "chart.bmp", bmp()
    yield "tides.sqlite", database()
    yield "tides.pickle", pickle.dumps(json.loads(TEXTS["tides.json"]))
    yield "port.plist", plistlib.dumps({"port": "Brest", "tide": {"mean": 2.0, "constituents": ["M2", "S2"]}})
    yield "port.bplist", plistlib.dumps({"port": "Brest", "tide": {"mean": 2.0}}, fmt=plistlib.FMT_BINARY)
    yield "tide.pyc", importlib.util.MAGIC_NUMBER + bytes(12) + __import__("marshal").dumps(compile(code, "tide.py", "exec"))
    yield "program", Path(sys.executable).read_bytes()[:65536]
    yield "noise", bytes(chance.randrange(256) for _ in range(5000))
    yield "few", b"\xff\xfe\x00"
    yield "utf16.txt", TEXTS["letter.txt"].encode("utf-16")


def main():
    parser = argparse.ArgumentParser(description="Make the files and the model of this example.")
    parser.add_argument("--files", type=Path, default=HERE / "files")
    parser.add_argument("--models", type=Path, default=HERE / "models")
    asked = parser.parse_args()
    package = importlib.util.find_spec("magika")
    if package is None:
        sys.exit("the package magika is not there: pip install -r requirements.txt")
    package = Path(package.origin).parent
    asked.models.mkdir(parents=True, exist_ok=True)
    for file in (f"models/{MODEL}/model.onnx", f"models/{MODEL}/config.min.json", "config/content_types_kb.min.json"):
        shutil.copyfile(package / file, asked.models / Path(file).name)
    found = hashlib.sha256((asked.models / "model.onnx").read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"the model of this magika is another one: SHA-256 {found}, expected {SHA256}")
    labels = json.loads((asked.models / "config.min.json").read_text())["target_labels_space"]
    (asked.models / "labels.txt").write_text("".join(f"{label}\n" for label in labels))

    asked.files.mkdir(parents=True, exist_ok=True)
    made = {**{name: text.encode() for name, text in TEXTS.items()}, **dict(binaries())}
    for name, content in made.items():
        (asked.files / name).write_bytes(content)
    print(f"{len(made)} files in {asked.files}, and a model of {len(labels)} kinds in {asked.models}")


main()
