"""Copies the model with the least loss, and says which one that is.

    python pick.py FOLDER_OF_ALL OUT
"""

import glob
import json
import os
import shutil
import sys

folder, out = sys.argv[1:]
losses = {}
for path in glob.glob(os.path.join(glob.escape(folder), "*", "output", "loss.json")):
    with open(path) as file:
        losses[os.path.dirname(path)] = json.load(file)
best = min(losses, key=lambda folder: losses[folder]["loss"])
with open(os.path.join(out, "losses.json"), "w") as file:
    json.dump(sorted(losses.values(), key=lambda found: found["loss"]), file)
shutil.copy(os.path.join(best, "model.onnx"), os.path.join(out, "new"))
os.replace(os.path.join(out, "new"), os.path.join(out, "model.onnx"))
print(f"lr {losses[best]['lr']} is best: loss {losses[best]['loss']:.4f}")
