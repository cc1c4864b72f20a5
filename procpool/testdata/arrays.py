"""A worker that answers with bytes of every form."""

import ctypes

import lifecycle_worker
from lifecycle_worker import Data


def handle(query):
    op = query.payload if isinstance(query.payload, str) else "array"
    if op == "nothing":
        return Data({"n": 0}, (ctypes.c_float * 0)())
    if op == "steps":
        return Data(None, memoryview(b"a-b-c-")[::2])
    if op == "rows":
        return Data(None, memoryview(b"abcdef").cast("B", (2, 3)))
    import numpy

    if op == "no detections":
        return numpy.zeros((0, 4), "float32")
    if op == "every second column":
        query.send(numpy.arange(4, dtype=">i2"))
        return Data({"of": "columns"}, numpy.arange(12, dtype="uint8").reshape(3, 4)[:, ::2])
    if op == "complex":
        return numpy.array([1j], "complex64")
    if op == "times":
        return numpy.array(["1970-01-02", "1970-01-03", "1970-01-04"], "M8[D]")[::2]
    if op == "fields":
        return numpy.zeros(2, [("x", "<f4"), ("label", "u1")])
    if op == "objects":
        return numpy.array([{}])
    return query.array() * 2


if __name__ == "__main__":
    lifecycle_worker.serve(handle)
