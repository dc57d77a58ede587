"""The two stages around the model: what it listens to, frame by frame, and when it hears a voice.

Try one out with `python frames.py --check frames content=bytes`.
"""

import io
import wave

import numpy as np
import orchestra

RATE = 16000
FRAME, CONTEXT = 512, 64


# Rows of several lengths make no array together, so each sound is a batch here. The model's batches have many.
@orchestra.stage(batch=1, each=True, outputs={"input": ("float32", [None, CONTEXT + FRAME]), "seconds": ("float32", [])})
def frames(content):
    """The frames of a WAV file, each behind the last samples of the frame before it."""
    with wave.open(io.BytesIO(content)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise ValueError(f"it has {file.getparams()}, and 16 kHz, one channel and 16 bits are expected")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    n = max(1, -(-len(samples) // FRAME))
    padded = np.zeros(CONTEXT + n * FRAME, np.float32)
    padded[CONTEXT : CONTEXT + len(samples)] = samples
    frames = np.stack([padded[at * FRAME : at * FRAME + CONTEXT + FRAME] for at in range(n)])
    return {"input": frames, "seconds": len(samples) / RATE}


@orchestra.stage(batch=16, each=True, outputs={"voice": {"begin": ("float32", []), "end": ("float32", [])}})
def spans(output):
    """From when to when a voice is heard, in seconds: it begins where the probability reaches a half, and ends where it falls below 0.35."""
    found, begin = [], None
    for at, probability in enumerate(output.ravel()):
        if begin is None and probability >= 0.5:
            begin = at
        elif begin is not None and probability < 0.35:
            found.append({"begin": begin * FRAME / RATE, "end": at * FRAME / RATE})
            begin = None
    if begin is not None:
        found.append({"begin": begin * FRAME / RATE, "end": output.shape[0] * FRAME / RATE})
    return {"voice": found}
