"""Runs the model over each sound in a plain loop of ONNX Runtime for Python, and compares probabilities and spans.

    python check.py [--output DIR]
"""

import argparse
import json
import sys
import wave
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent


def probabilities(session, path):
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype("f4") / 32768
    state, context, found = np.zeros((2, 1, 128), "f4"), np.zeros(64, "f4"), []
    for at in range(0, len(samples), 512):
        frame = np.zeros(512, "f4")
        frame[: len(samples[at : at + 512])] = samples[at : at + 512]
        both = np.concatenate([context, frame])[None]
        output, state = session.run(["output", "stateN"], {"input": both, "state": state, "sr": np.array(16000)})
        context = frame[-64:]
        found.append(output[0, 0])
    return np.array(found)


def spans(probabilities):
    heard, found = False, []
    for at, probability in enumerate(probabilities):
        if not heard and probability >= 0.5:
            heard = True
            found.append([at * 0.032, len(probabilities) * 0.032])
        elif heard and probability < 0.35:
            heard = False
            found[-1][1] = at * 0.032
    return found


def main():
    parser = argparse.ArgumentParser(description="Check the audio example.")
    parser.add_argument("--output", type=Path, default=HERE / "out")
    asked = parser.parse_args()
    session = onnxruntime.InferenceSession(HERE / "models/silero_vad.onnx")
    truth = json.loads((HERE / "truth.json").read_text())
    records = {record["item"]: record["result"] for record in map(json.loads, open(asked.output / "voice.jsonl"))}
    if sorted(records) != sorted(truth):
        sys.exit(f"{len(records)} records for {len(truth)} sounds")
    frames, far, n_spans, heard = 0, 0.0, 0, 0
    for name, result in records.items():
        want = probabilities(session, HERE / "sounds" / name)
        found = np.array(result["probabilities.output"]["data"]).ravel()
        if found.shape != want.shape:
            sys.exit(f"{name}: {len(found)} probabilities, expected {len(want)}")
        far = max(far, np.abs(found - want).max())
        voice = [[span["begin"], span["end"]] for span in result["voice"]]
        if not np.allclose(np.array(voice), np.array(spans(want)), atol=1e-3):
            sys.exit(f"{name}: a voice at {voice}, expected {spans(want)}")
        frames, n_spans = frames + len(want), n_spans + len(voice)
        heard += sum(any(begin < end_of and end > begin_of for begin, end in voice) for begin_of, end_of in truth[name])
    if far > 1e-4:
        sys.exit(f"a probability is {far} from that of the plain loop")
    print(f"{len(records)} sounds of {frames} frames: all probabilities are those of a plain loop; a voice {n_spans} times, in {heard} of the {sum(map(len, truth.values()))} places that have one")


main()
