"""A worker whose handlers return and raise unexpected values."""

import asyncio
import os
import time

import lifecycle_worker


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


def deep(n):
    out = []
    for _ in range(n):
        out = [out]
    return out


left = []


def handle(query):
    op = query.payload
    if isinstance(op, dict):
        op = op.get("op")
    if op == "deaf-pid":
        query.send(os.getpid())
        time.sleep(3600)
    if op == "spin-pid":  # no other thread of Python runs
        query.send(os.getpid())
        time.sleep(0.05)
        sum(range(10**13))
    if op == "pid":
        return os.getpid()
    if op == "nan":
        return float("nan")
    if op == "send nan":
        query.send(float("inf"))
    if op == "deep":
        return deep(100_000)
    if op == "self":
        out = []
        out.append(out)
        return out
    if op == "object":
        return object()
    if op == "mute":
        raise Mute
    if op == "pipe":
        raise BrokenPipeError("of the handler's own")
    if op == "reset":
        raise ConnectionResetError("of the handler's own")
    if op == "cancel":
        raise asyncio.CancelledError
    if op == "generator":
        raise GeneratorExit("odd")
    if op == "long":
        return "x" * (2 << 20)
    if op == "send long":
        query.send("x" * (2 << 20))
    if op == "long error":
        raise RuntimeError("x" * (2 << 20))
    if op == "surrogate":
        return "\ud800 \U0001F600"
    if op == "raise surrogate":
        raise RuntimeError("\udcff")
    if op == "big":
        return 2**200
    if op == "behind":
        was, left[:] = left[:], [query]
        if was:
            was[0].send("late")
        return "left behind"
    if op == "undefined":
        return None
    return query.payload


if __name__ == "__main__":  # multiprocessing imports this file again
    lifecycle_worker.serve(handle)
