"""Hashes images and counts words. Standard library only.

Images are binary PPM (P6). Two that look alike have hashes that differ in few
bits (dHash: is each point of a 9 by 8 thumbnail brighter than its neighbour).
"""

import base64
import collections
import re

import lifecycle_worker


def read_ppm(data):
    """Returns width, height and the rows of brightness."""
    fields = re.match(rb"P6\s+(\d+)\s+(\d+)\s+255\s", data)
    if not fields:
        raise ValueError("not a binary PPM with 255 levels")
    width, height = int(fields[1]), int(fields[2])
    pixels = data[fields.end():]
    if width < 9 or height < 8 or len(pixels) < 3 * width * height:
        raise ValueError("the image is too small or cut short")
    return width, height, pixels


def dhash(data):
    width, height, pixels = read_ppm(data)
    bits = 0
    for y in range(8):
        row = y * height // 8 * width
        at = [3 * (row + x * width // 9) for x in range(9)]
        light = [299 * pixels[i] + 587 * pixels[i + 1] + 114 * pixels[i + 2] for i in at]
        for left, right in zip(light, light[1:]):
            bits = bits << 1 | (left > right)
    return "%016x" % bits


def handle(query):
    ask = query.payload
    if "images" in ask:
        for image in ask["images"]:
            if query.cancelled:
                raise lifecycle_worker.Cancelled
            query.send({"name": image["name"], "hash": dhash(base64.b64decode(image["ppm"]))})
        return {"images": len(ask["images"])}
    words = re.findall(r"\w+", ask["text"].lower())
    common = collections.Counter(words).most_common(3)
    return {"words": len(words), "distinct": len(set(words)), "common": [w for w, _ in common]}


if __name__ == "__main__":  # multiprocessing imports this file again
    lifecycle_worker.serve(handle)
