"""Asks the server of this example which digit is on each picture. It needs Python 3.8 and nothing else.

    python client.py [--server HOST:PORT] PICTURE ...

`read_digit` is all that a client takes: JSON, the length of the file in 4 bytes, and the file.
"""

import argparse
import json
import struct
import urllib.request
from pathlib import Path


def read_digit(server, picture):
    """The three most likely labels of a picture file, best first, as `{"label": .., "score": ..}`."""
    data = struct.pack("<I", len(picture)) + picture
    given = {"name": "picture", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [given], "outputs": [{"name": "digit"}]}).encode()
    url, headers = f"http://{server}/v2/models/workflow/infer", {"Inference-Header-Content-Length": len(head)}
    with urllib.request.urlopen(urllib.request.Request(url, head + data, headers)) as answer:
        (output,) = json.load(answer)["outputs"]
    return json.loads(output["data"][0])


def main():
    parser = argparse.ArgumentParser(description="Read digits on pictures.")
    parser.add_argument("--server", default="127.0.0.1:8000")
    parser.add_argument("pictures", nargs="+", type=Path)
    asked = parser.parse_args()
    for picture in asked.pictures:
        print(picture, read_digit(asked.server, picture.read_bytes()))


if __name__ == "__main__":
    main()
