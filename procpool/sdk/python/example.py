"""A worker in Python, with the same questions as the other examples."""

import os
import sys

import lifecycle_worker


def handle(query):
    ask = query.payload if isinstance(query.payload, dict) else {}
    op = ask.get("op")
    if op == "count":
        query.session("session of " + query.id)
        for i in range(ask["n"]):
            if query.cancelled:
                raise lifecycle_worker.Cancelled
            query.send(i)
        return ask["n"]
    if op == "sleep":
        if query.wait_cancelled(ask["seconds"]):
            raise lifecycle_worker.Cancelled
        return "slept"
    if op == "fail":
        raise RuntimeError("failed: " + ask["text"])
    if op == "exit":
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(ask["n"])
    if op == "call":  # ask the pool's process
        return query.call(ask["text"], ask["value"])
    if op == "about":
        return {"metadata": query.metadata, "traceparent": query.traceparent, "tracestate": query.tracestate, "deadline": query.deadline is not None}
    if op == "pid":
        return os.getpid()
    return lifecycle_worker.Data(query.payload, query.bytes)


if __name__ == "__main__":  # multiprocessing imports this file again
    lifecycle_worker.serve(handle, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
