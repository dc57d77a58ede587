"""Estimates pi from a walk on the unit square, and stands for a training script: a setting, a seed, a result."""

import argparse
import json
import os
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--step", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--out", required=True)
args = parser.parse_args()

began = time.time()
rng = random.Random(args.seed)
x = y = 0.5
inside = 0
steps = 20_000
for _ in range(steps):
    # A walk that is reflected at the edges stays uniform.
    x = abs(x + rng.uniform(-args.step, args.step))
    y = abs(y + rng.uniform(-args.step, args.step))
    x, y = (2 - x if x > 1 else x), (2 - y if y > 1 else y)
    inside += x * x + y * y < 1
pi = 4 * inside / steps
print(f"step {args.step}, seed {args.seed}: pi is about {pi}")

result = {"step": args.step, "seed": args.seed, "pi": pi, "slot": os.environ.get("ORCHESTRA_SLOT"), "began": began, "ended": time.time()}
# As a whole or not at all: a command may be ended at any moment.
with open(args.out + ".next", "w") as file:
    json.dump(result, file)
os.rename(args.out + ".next", args.out)
