"""Reads pages with RapidOCR itself, as it is after `pip install rapidocr==3.10.0 onnxruntime`, for check.py to compare with.

    python rapid.py PAGES_FOLDER REFERENCE.jsonl

Writes a line per page, `{"page", "lines": [{"box", "score", "text"}]}`, and prints how many pages it read per second; its models are loaded and have read one page
before the time begins.
"""

import json
import sys
import time
from pathlib import Path

from rapidocr import RapidOCR


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    pages = sorted(Path(sys.argv[1]).glob("*.png"))
    if not pages:
        print(f"no pages in {sys.argv[1]}: make_pages.py makes some", file=sys.stderr)
        return 1
    reader = RapidOCR(params={"Global.log_level": "error"})
    reader(pages[0])
    begin = time.perf_counter()
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for page in pages:
            found = reader(page)
            texts = () if found.txts is None else zip(found.boxes.tolist(), found.scores, found.txts)
            lines = [{"box": box, "score": score, "text": text} for box, score, text in texts]
            file.write(json.dumps({"page": page.name, "lines": lines}, ensure_ascii=False) + "\n")
    seconds = time.perf_counter() - begin
    print(f"RapidOCR: {len(pages)} pages in {seconds:.1f} s, {len(pages) / seconds:.3f} pages per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
