"""usage: programs.py CLIENT URL WORKERS SECONDS PAUSE_MS

Runs curl or h2load, and says what they said. "curl" is a process of curl for each worker,
each of which keeps its connection; "curl-parallel" is one curl --parallel; "h2load" is h2load
with one connection, and "h2load-h1" with a connection for each worker.
"""
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time

kind, url, workers, seconds, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]) / 1000
began = time.monotonic()
out = {"sent": 0, "failed": 0, "errors": {}, "at": {}, "note": ""}
post = ["--data-binary", "x" * 100]
rate = round(1 / (0.01 + pause / 2))  # requests a second of each worker


def fail(text, n=1, at=None):
    at = round((time.monotonic() - began if at is None else at) * 1000)
    text = re.sub(r"127\.0\.0\.1:?( port)? ?\d+( after \d+ ms)?", "ADDR", text)
    out["failed"] += n
    out["errors"][text] = out["errors"].get(text, 0) + n
    out["at"].setdefault(text, []).extend([at] * n)


async def curl(*args):
    """Runs one curl, which writes a line for each request."""
    command = ["curl", "--silent", "--no-progress-meter", "--output", "/dev/null", "--write-out", "%{stderr}%{http_code} %{exitcode} %{errormsg}\n", *args, url + "?[1-1000000]"]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)

    async def read():
        while line := await child.stderr.readline():
            match = re.search(r"(\d{3}) (\d+) (.*)$", line.decode().rstrip("\n"))
            if not match or "--:--" in line.decode():  # the progress of --parallel
                continue
            status, exit_code, text = match.groups()
            out["sent"] += 1
            if exit_code != "0":
                fail(f"curl: ({exit_code}) {text}")
            elif status != "200":
                fail(f"status {status}")

    try:
        await asyncio.wait_for(read(), seconds - (time.monotonic() - began))
    except asyncio.TimeoutError:
        pass
    if child.returncode is None:
        child.kill()
    await child.wait()


async def curls():
    pace = ["--rate", f"{rate}/s"]
    await asyncio.gather(*(curl(*pace, *(post if i % 2 else [])) for i in range(workers)))


def h2load(connections, streams, *args):
    rps = rate * workers // connections
    log = tempfile.NamedTemporaryFile()
    command = ["h2load", "-c", str(connections), "-m", str(streams), "--rps", str(rps), "-D", f"{seconds:.0f}", "--log-file", log.name, *args, url]
    wall = time.time()
    text = subprocess.run(command, capture_output=True, text=True).stdout
    total = re.search(r"requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
    if not total:
        sys.exit("h2load said: " + text)
    # h2load drops what is in progress at its end; those requests count nowhere.
    out["sent"] = int(total[1])
    for line in log.read().decode().splitlines():
        start, status, _ = line.split("\t")
        if not status.startswith(("2", "3")):
            fail(f"h2load: status {status}", at=int(start) / 1e6 - wall)
    if rest := int(total[5]) - out["failed"]:
        fail(f"h2load: {total[0]}", rest)


print("began", flush=True)
version = [(kind if kind.startswith("h2load") else "curl").split("-")[0], "--version"]
out["note"] = " ".join(subprocess.run(version, capture_output=True, text=True).stdout.split()[:2])
if kind == "curl":
    asyncio.run(curls())
elif kind == "curl-parallel":
    asyncio.run(curl("--parallel", "--parallel-max", str(workers)))
elif kind == "h2load":
    h2load(1, workers)
elif kind == "h2load-h1":
    h2load(workers, 1, "--h1")
else:
    sys.exit(f"unknown client {kind}")
print(json.dumps(out))
