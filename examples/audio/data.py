"""Makes what this example works on: 24 sounds in `sounds/`, WAV files of 16 kHz with hum, noise, silence and something like a voice, `truth.json`, when the
voice is heard, and the model of the package silero-vad (MIT) in `models/`.

    python data.py [--sounds DIR] [--models DIR]

It needs numpy, and the package silero-vad, of which it copies the model; it does not run it.
"""

import argparse
import importlib.util
import json
import shutil
import wave
from hashlib import sha256
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RATE = 16000
SHA256 = "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"
# The first three formants of some vowels, in Hz.
VOWELS = [(730, 1090, 2440), (530, 1840, 2480), (270, 2290, 3010), (570, 840, 2410), (300, 870, 2240)]


def resonance(signal, frequency, width=90):
    """A filter with one peak."""
    radius = np.exp(-np.pi * width / RATE)
    a1, a2 = 2 * radius * np.cos(2 * np.pi * frequency / RATE), -radius * radius
    out, one, two = np.empty_like(signal), 0.0, 0.0
    for at, value in enumerate(signal):
        out[at] = value + a1 * one + a2 * two
        one, two = out[at], one
    return out


def voice(chance, seconds):
    """Pulses of a gliding pitch through the formants of vowels, one syllable after the other."""
    syllables = []
    while sum(map(len, syllables)) < seconds * RATE:
        n = int(chance.uniform(0.14, 0.32) * RATE)
        pitch = np.linspace(chance.uniform(110, 150), chance.uniform(90, 140), n)
        pulses = (np.diff(np.floor(np.cumsum(pitch / RATE)), prepend=0) > 0).astype(float)
        pulses += chance.normal(0, 0.01, n)
        sound = pulses
        for formant in VOWELS[chance.integers(len(VOWELS))]:
            sound = resonance(sound, formant)
        envelope = np.sin(np.linspace(0, np.pi, n)) ** 0.5
        syllables += [sound / np.abs(sound).max() * envelope, np.zeros(int(chance.uniform(0.02, 0.06) * RATE))]
    return np.concatenate(syllables)


def sound(chance):
    """The samples of a sound, from -1 to 1, and from when to when the voice is heard, in seconds."""
    parts, spans, at = [], [], 0
    for is_voice in chance.permutation([True] * chance.integers(0, 3) + [False] * chance.integers(1, 4)):
        seconds = chance.uniform(0.4, 2.0)
        n = int(seconds * RATE)
        if is_voice:
            part = 0.5 * voice(chance, seconds)
            spans.append((round(at / RATE, 2), round((at + len(part)) / RATE, 2)))
        else:
            part = [np.zeros(n), chance.normal(0, 0.05, n), 0.2 * np.sin(np.arange(n) * 2 * np.pi * 50 / RATE)][chance.integers(3)]
        parts.append(part)
        at += len(part)
    samples = np.concatenate(parts)
    return np.clip(samples + chance.normal(0, 0.002, len(samples)), -1, 1), spans


def model_to(folder):
    package = importlib.util.find_spec("silero_vad")
    if package is None:
        raise SystemExit("the package silero-vad is missing: pip install --no-deps silero-vad==6.2.3")
    path = Path(package.origin).parent / "data" / "silero_vad.onnx"
    if sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path} is another model: pip install --no-deps silero-vad==6.2.3")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / path.name)


def main():
    parser = argparse.ArgumentParser(description="Make the sounds of the audio example, and copy its model.")
    parser.add_argument("--sounds", type=Path, default=HERE / "sounds")
    parser.add_argument("--models", type=Path, default=HERE / "models")
    asked = parser.parse_args()
    model_to(asked.models)
    asked.sounds.mkdir(parents=True, exist_ok=True)
    chance, truth = np.random.default_rng(7), {}
    for number in range(24):
        samples, truth[f"{number:02}.wav"] = sound(chance)
        with wave.open(str(asked.sounds / f"{number:02}.wav"), "wb") as out:
            out.setparams((1, 2, RATE, 0, "NONE", ""))
            out.writeframes((samples * 32767).astype("<i2").tobytes())
    (HERE / "truth.json").write_text(json.dumps(truth))
    print(f"24 sounds, {sum(map(len, truth.values()))} times a voice in them")


main()
