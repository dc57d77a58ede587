"""Splits the images of ../digits: 300 into arrays to train with, 100 as they are, to be read.

    python convert.py FOLDER
"""

import csv
import os
import shutil
import sys

import numpy as np
from PIL import Image

digits = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits")
out = sys.argv[1]
held_out = os.path.join(out, "held-out")
os.makedirs(held_out, exist_ok=True)
images, labels = [], []
with open(os.path.join(digits, "labels.csv"), newline="") as file:
    for at, row in enumerate(csv.DictReader(file)):
        path = os.path.join(digits, "images", row["file"])
        if at % 4 == 0:
            shutil.copy(path, held_out)
        else:
            images.append(np.asarray(Image.open(path)))
            labels.append(int(row["label"]))
np.savez(os.path.join(out, "new.npz"), images=np.stack(images), labels=np.array(labels))
# Last: what is there says that all is.
os.replace(os.path.join(out, "new.npz"), os.path.join(out, "train.npz"))
print(f"{len(labels)} images to train with")
