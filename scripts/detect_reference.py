#!/usr/bin/env python3
"""An implementation of the layouts of `kind = "detect"` that shares no code with it, and needs nothing beside Python.

Reads a JSON list of cases on standard input, and writes a JSON list of lists of detections. A case has `layout`, the settings of the stage, `row` (width
and height of the model's input), `to_picture` (six numbers), `picture` (width and height), and `tensors`: name to {"shape", "data"}.
"""

import json
import math
import sys


def matrix(tensor):
    rows, columns = tensor["shape"][-2:]
    data = tensor["data"]
    return [data[r * columns:(r + 1) * columns] for r in range(rows)]


def corners(box):
    x, y, w, h = box
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def argmax(values):
    return max(range(len(values)), key=lambda at: (values[at], -at))


def decode(case):
    """Yields (class, score, box in pixels of the row, and the angle of a turned one)."""
    layout, tensors = case["layout"], case["tensors"]
    width, height = case["row"]
    scale = [width, height, width, height] if case.get("relative", True) else [1, 1, 1, 1]
    sized = lambda box: [value * by for value, by in zip(box, scale)]
    if layout == "yolov5":
        for row in matrix(tensors["output"]):
            scores = [row[4] * score for score in row[5:]]
            yield argmax(scores), max(scores), corners(row[:4])
    elif layout == "yolov8":
        for row in zip(*matrix(tensors["output"])):
            scores = row[4:4 + case.get("classes", len(row) - 4)]
            yield argmax(scores), max(scores), corners(row[:4])
    elif layout == "yolov8_obb":
        for x, y, w, h, *scores, angle in zip(*matrix(tensors["output"])):
            yield argmax(scores), max(scores), [x, y, w, h], angle
    elif layout == "yolo_end2end_obb":
        for x, y, w, h, score, label, angle in matrix(tensors["output"]):
            yield int(label), score, [x, y, w, h], angle
    elif layout == "yolo_end2end":
        for row in matrix(tensors["output"]):
            yield int(row[5]), row[4], row[:4]
    elif layout == "yolox":
        cells = [(x, y, s) for s in (8, 16, 32) for y in range(height // s) for x in range(width // s)]
        for (x, y, stride), row in zip(cells, matrix(tensors["output"])):
            box = [(row[0] + x) * stride, (row[1] + y) * stride, math.exp(row[2]) * stride, math.exp(row[3]) * stride]
            scores = [row[4] * score for score in row[5:]]
            yield argmax(scores), max(scores), corners(box)
    elif layout in ("ssd", "ultraface"):
        for box, scores in zip(matrix(tensors["boxes"]), matrix(tensors["scores"])):
            for label in range(1 if case.get("background", True) and len(scores) > 1 else 0, len(scores)):
                yield label, scores[label], sized(box)
    elif layout == "detr" and "scores" in tensors:
        for box, score, label in zip(matrix(tensors["boxes"]), tensors["scores"]["data"], tensors["labels"]["data"]):
            yield int(label), score, sized(box)
    elif layout == "detr":
        boxes = matrix(tensors.get("dets") or tensors["pred_boxes"])
        logits = matrix(tensors.get("labels") or tensors["logits"])
        for box, row in zip(boxes, logits):
            if case.get("scores") == "softmax":
                powers = [math.exp(value) for value in row]
                best = argmax(powers[:-1])
                yield best, powers[best] / sum(powers), sized(corners(box))
            else:
                for number, value in enumerate(row):
                    yield number, 1 / (1 + math.exp(-value)), sized(corners(box))
    elif layout == "tf":
        count = int(tensors["num_detections"]["data"][0])
        named = [tensors["detection_" + name] for name in ("boxes", "scores", "classes")]
        for box, score, label in list(zip(matrix(named[0]), named[1]["data"], named[2]["data"]))[:count]:
            yield int(label), score, sized([box[1], box[0], box[3], box[2]])


def overlap(a, b):
    across = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    down = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    area = lambda c: (c[2] - c[0]) * (c[3] - c[1])
    return across * down / (area(a) + area(b) - across * down)


def turned_corners(box, angle):
    x, y, w, h = box
    across, down = (w / 2 * math.cos(angle), w / 2 * math.sin(angle)), (-h / 2 * math.sin(angle), h / 2 * math.cos(angle))
    return [(x + i * across[0] + j * down[0], y + i * across[1] + j * down[1]) for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def covariance(box, angle):
    """That of the points of a turned box: R diag(w * w, h * h) / 12 R^T."""
    turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    sides = [box[2] ** 2 / 12, box[3] ** 2 / 12]
    return [[sum(turn[i][k] * sides[k] * turn[j][k] for k in (0, 1)) for j in (0, 1)] for i in (0, 1)]


def probabilistic_overlap(one, other):
    """1 - the Hellinger distance, by the Bhattacharyya distance of two normal distributions."""
    a, b = covariance(*one[2:]), covariance(*other[2:])
    det = lambda m: m[0][0] * m[1][1] - m[0][1] * m[1][0]
    mean = [[(a[i][j] + b[i][j]) / 2 for j in (0, 1)] for i in (0, 1)]
    inverse = [[mean[1][1] / det(mean), -mean[0][1] / det(mean)], [-mean[1][0] / det(mean), mean[0][0] / det(mean)]]
    apart = [one[2][0] - other[2][0], one[2][1] - other[2][1]]
    mahalanobis = sum(apart[i] * inverse[i][j] * apart[j] for i in (0, 1) for j in (0, 1))
    distance = mahalanobis / 8 + math.log(det(mean) / math.sqrt(det(a) * det(b))) / 2
    return 1 - math.sqrt(max(0, 1 - math.exp(-distance)))


def boxes(case):
    found = [one for one in decode(case) if one[1] >= case["threshold"]]
    found.sort(key=lambda one: -one[1])
    if case["layout"] in ("yolov5", "yolov8", "yolov8_obb", "yolox", "ssd", "ultraface"):
        kept = []
        for one in found:
            by = probabilistic_overlap if len(one) == 4 else lambda one, other: overlap(one[2], other[2])
            if all(one[0] != other[0] or by(one, other) <= case["iou"] for other in kept):
                kept.append(one)
        found = kept
    a, b, c, d, e, f = case["to_picture"]
    width, height = case["picture"]
    clip = lambda value, most: min(max(value, 0), most)
    for label, score, box, *angle in found[:case["max"]]:
        points = turned_corners(box, *angle) if angle else [(x, y) for x in box[::2] for y in box[1::2]]
        points = [(a * x + b * y + c, d * x + e * y + f) for x, y in points]
        xs, ys = zip(*points)
        box = [clip(min(xs), width), clip(min(ys), height), clip(max(xs), width), clip(max(ys), height)]
        if box[2] > box[0] and box[3] > box[1]:
            yield {"class": label, "score": score, "box": box, **({"polygon": points} if angle else {})}


def smallest_rectangle(points):
    """(area, side, side, angle, centre), over all directions of pairs of points on the hull."""
    points = sorted(set(points))
    hull = []
    for order in (points, points[::-1]):
        start = len(hull)
        for p in order:
            while len(hull) - start >= 2:
                (ax, ay), (bx, by) = hull[-2:]
                if (bx - ax) * (p[1] - ay) - (by - ay) * (p[0] - ax) > 0:
                    break
                hull.pop()
            hull.append(p)
        hull.pop()
    best = None
    for (ax, ay), (bx, by) in zip(hull, hull[1:] + hull[:1]):
        angle = math.atan2(by - ay, bx - ax)
        cos, sin = math.cos(angle), math.sin(angle)
        along = [x * cos + y * sin for x, y in hull]
        across = [y * cos - x * sin for x, y in hull]
        w, h = max(along) - min(along), max(across) - min(across)
        u, v = (max(along) + min(along)) / 2, (max(across) + min(across)) / 2
        if best is None or w * h < best[0] - 1e-9:
            best = (w * h, w, h, angle, (u * cos - v * sin, u * sin + v * cos))
    return best


def texts(case):
    """Texts of a probability map, each with its polygon; in no order."""
    rows = matrix(case["tensors"]["map"])
    height, width = len(rows), len(rows[0])
    is_text = {(x, y) for y in range(height) for x in range(width) if rows[y][x] > case["threshold"]}
    if case.get("dilate"):
        grown = {(x + i, y + j) for x, y in is_text for i in (0, 1) for j in (0, 1)}
        is_text = {(x, y) for x, y in grown if x < width and y < height}
    a, b, c, d, e, f = case["to_picture"]
    while is_text:
        region, stack = [], [is_text.pop()]
        while stack:
            x, y = stack.pop()
            region.append((x, y))
            for near in [(x + i, y + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]:
                if near in is_text:
                    is_text.remove(near)
                    stack.append(near)
        rectangle = smallest_rectangle(region) if len(region) > 2 else None
        if rectangle is None or min(rectangle[1:3]) < case["min_size"]:
            continue
        _, w, h, angle, (cx, cy) = rectangle
        cos, sin = math.cos(angle), math.sin(angle)
        around = lambda middle, end: range(max(0, int(middle - w - h)), min(end, int(middle + w + h) + 2))
        inside = [
            rows[y][x] for y in around(cy, height) for x in around(cx, width)
            if abs((x - cx) * cos + (y - cy) * sin) <= (w + 1) / 2 and abs((y - cy) * cos - (x - cx) * sin) <= (h + 1) / 2
        ]
        score = sum(inside) / len(inside)
        grow = w * h * case["unclip"] / (2 * (w + h))
        w, h = w + 2 * grow, h + 2 * grow
        if score < case["box_threshold"] or min(w, h) < case["min_size"] + 2:
            continue
        polygon = []
        for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
            x, y = cx + (i * w * cos - j * h * sin) / 2, cy + (i * w * sin + j * h * cos) / 2
            x, y = x * case["row"][0] / width, y * case["row"][1] / height
            polygon.append([a * x + b * y + c, d * x + e * y + f])
        yield {"score": score, "polygon": polygon}


if __name__ == "__main__":
    answers = [list(texts(case) if case["layout"] == "dbnet" else boxes(case)) for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)
