"""Makes the golden cases of torchvision's usual preparation: `torchvision.txt` and `torchvision.bin` (normalised rows as 16 bit floats).

`pil`: `torchvision.transforms` on Pillow images, Resize, CenterCrop, ToTensor, Normalize. `tensor`: `torchvision.transforms.v2` on 8 bit tensors
with `antialias=True`, Resize, CenterCrop, ToDtype, Normalize. Reads the inputs that `make.py` and `make_jpegs.py` left.

Made with torch 2.15.0, torchvision 0.29.2 and Pillow 13.0.0:
`python3 -m venv venv && venv/bin/pip install torch==2.15.0 torchvision==0.29.2 pillow==13.0.0 numpy && venv/bin/python make_torchvision.py`.
A line of `torchvision.txt` is `input filter fit shorter color layout height width way`; the rows follow in the same order.
"""
import io
import pathlib

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode, v2

HERE = pathlib.Path(__file__).parent
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# On tensors `NEAREST` is another filter: it takes the pixel left of the centre. `NEAREST_EXACT` is Pillow's.
PIL_FILTERS = {
    "nearest": InterpolationMode.NEAREST,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
    "lanczos3": InterpolationMode.LANCZOS,
}
TENSOR_FILTERS = {
    "nearest": InterpolationMode.NEAREST_EXACT,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}


def statistics(color):
    if color == "gray":
        return [0.5], [0.5]
    return (MEAN, STD) if color == "rgb" else (MEAN[::-1], STD[::-1])


def resizes(module, fit, shorter, height, width, kind):
    if fit == "stretch":
        return [module.Resize((height, width), kind, antialias=True)]
    return [module.Resize(shorter, kind, antialias=True), module.CenterCrop((height, width))]


def prepared(source, kind, fit, shorter, color, layout, height, width, way):
    image = Image.open(HERE / source).convert("RGB")
    if color == "gray":
        image = image.convert("L")
    mean, std = statistics(color)
    if way == "pil":
        steps = resizes(transforms, fit, shorter, height, width, PIL_FILTERS[kind])
        row = transforms.Compose([*steps, transforms.ToTensor()])(image)
        normalize = transforms.Normalize(mean, std)
    else:
        steps = resizes(v2, fit, shorter, height, width, TENSOR_FILTERS[kind])
        row = v2.Compose([v2.PILToTensor(), *steps, v2.ToDtype(torch.float32, scale=True)])(image)
        normalize = v2.Normalize(mean, std)
    if color == "bgr":
        row = row.flip(0)
    row = normalize(row)
    return row.permute(1, 2, 0) if layout == "nhwc" else row


def cases():
    for way, filters in (("pil", PIL_FILTERS), ("tensor", TENSOR_FILTERS)):
        for kind in filters:
            for source in ("scene.png", "photo.jpg"):
                yield source, kind, "shorter", 26, "rgb", "nchw", 22, 20, way
            yield "tall.png", kind, "stretch", 0, "rgb", "nhwc", 20, 22, way
            yield "scene.png", kind, "shorter", 24, "gray", "nchw", 20, 24, way
        for source in ("progressive.jpg", "gray.jpg", "photo-444.jpg", "photo-422.jpg", "cmyk.jpg", "palette.png", "lossless.webp"):
            yield source, "bilinear", "shorter", 26, "rgb", "nchw", 22, 20, way
        for color, layout in (("bgr", "nchw"), ("bgr", "nhwc"), ("rgb", "nhwc"), ("gray", "nhwc")):
            yield "photo.jpg", "bilinear", "shorter", 26, color, layout, 22, 20, way
        if way == "pil":
            # The rarer kinds of JPEG: what Pillow takes them for.
            for source in ("photo-440.jpg", "photo-411.jpg", "rgb-adobe.jpg", "rgb-names.jpg", "ycck.jpg", "cmyk-plain.jpg", "extended.jpg"):
                yield source, "bilinear", "shorter", 26, "rgb", "nchw", 22, 20, way
        # Enlarged.
        yield "tall.png", "bilinear", "stretch", 0, "rgb", "nchw", 50, 45, way


def main():
    expected, lines = io.BytesIO(), []
    for case in cases():
        row = prepared(*case).contiguous().numpy()
        expected.write(row.astype("<f2").tobytes())
        lines.append(" ".join(map(str, case)) + "\n")
    (HERE / "torchvision.bin").write_bytes(expected.getvalue())
    (HERE / "torchvision.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
