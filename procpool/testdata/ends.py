"""A worker that keeps a file open. atexit writes its last line."""

import atexit
import os
import time

import lifecycle_worker

out = open(os.path.join(os.environ["ENDS"], str(os.getpid())), "w")  # its buffer is larger than what is written


def say(line):
    out.write(line + "\n")


def last():
    if os.environ.get("HANG"):
        time.sleep(3600)
    say("exit")


def handle(query):
    say("query")
    print("line", query.payload)
    if query.payload == "die":
        os._exit(3)
    return os.getpid()


atexit.register(last)
if __name__ == "__main__":
    lifecycle_worker.serve(handle, on_startup=lambda: say("startup"), on_shutdown=lambda: say("shutdown"))
