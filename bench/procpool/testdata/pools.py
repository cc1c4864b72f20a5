"""Echoes in the pools of processes that Python comes with.

Arguments: the pool, and the size of a payload. For each line with a number on standard
input it makes so many round trips, one after the other, and prints the time of each in
nanoseconds, on one line. Payloads of 1 MB are bytes, smaller ones are text."""

import concurrent.futures
import multiprocessing
import sys
import time


def echo(payload):
    return payload


def main():
    kind, size = sys.argv[1], int(sys.argv[2])
    payload = b"x" * size if size >= 1 << 20 else "x" * size
    if kind == "ProcessPoolExecutor":
        pool = concurrent.futures.ProcessPoolExecutor(1)
        trip = lambda: pool.submit(echo, payload).result()
    else:
        pool = multiprocessing.Pool(1)
        trip = lambda: pool.apply(echo, (payload,))
    if trip() != payload:
        sys.exit("it does not echo")
    print("ready", flush=True)
    for line in sys.stdin:
        took = []
        for _ in range(int(line)):
            began = time.perf_counter_ns()
            if len(trip()) != size:
                sys.exit("it does not echo")
            took.append(time.perf_counter_ns() - began)
        print(*took, flush=True)
    if kind == "ProcessPoolExecutor":
        pool.shutdown()
    else:
        pool.terminate()
        pool.join()


if __name__ == "__main__":
    main()
