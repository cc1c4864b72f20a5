"""usage: client.py CLIENT URL WORKERS SECONDS PAUSE_MS"""
import asyncio
import json
import os
import random
import re
import sys
import threading
import time

kind, url, workers, seconds, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]) / 1000
body = b"x" * 100
began = time.monotonic()
out = {"sent": 0, "failed": 0, "errors": {}, "at": {}, "note": ""}
lock = threading.Lock()
open_requests = 0


def over():
    return time.monotonic() - began >= seconds


def check(status):
    if status != 200:
        raise RuntimeError(f"status {status}")


def fail(text):
    with lock:
        out["failed"] += 1
        out["errors"][text] = out["errors"].get(text, 0) + 1
        out["at"].setdefault(text, []).append(round((time.monotonic() - began) * 1000))


def count(n):
    global open_requests
    with lock:
        open_requests += n
        if n > 0:
            out["sent"] += n


def describe(err):
    parts = []
    while err is not None and len(parts) < 4:
        code = getattr(err, "code", None)
        text = f"{code().name} {err.details()}" if callable(code) and hasattr(err, "details") else str(err)
        parts.append(f"{type(err).__name__} {text}")
        err = err.__cause__ or err.__context__
    text = ": ".join(parts)
    text = re.sub(r"(127\.0\.0\.1:|port=)\d+|('127\.0\.0\.1', )\d+", r"\1\2PORT", text)
    text = re.sub(r"0x[0-9a-f]+", "0xN", text)
    text = re.sub(r"(stream_id:|stream |StreamID )\d+", r"\1N", text)
    return text[:300]


def begin():
    global began
    began = time.monotonic()
    print("began", flush=True)


async def run_async(send):
    async def worker(post):
        while not over():
            count(1)
            try:
                await send(post)
            except Exception as err:  # each library has its own
                fail(describe(err))
                await asyncio.sleep(0.02)
            count(-1)
            post = not post
            await asyncio.sleep(random.random() * pause)

    begin()
    tasks = [asyncio.create_task(worker(i % 2 == 1)) for i in range(workers)]
    await asyncio.wait(tasks, timeout=seconds + 8 - (time.monotonic() - began))


def run_threads(sender):
    """sender returns the function with which one thread sends."""

    def worker(post):
        send = sender()
        while not over():
            count(1)
            try:
                send(post)
            except Exception as err:
                fail(describe(err))
                time.sleep(0.02)
            count(-1)
            post = not post
            time.sleep(random.random() * pause)

    begin()
    threads = [threading.Thread(target=worker, args=(i % 2 == 1,), daemon=True) for i in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(max(0.0, seconds + 8 - (time.monotonic() - began)))


async def with_httpx(http2):
    import httpx

    out["note"] = f"httpx {httpx.__version__}"
    async with httpx.AsyncClient(http2=http2) as client:

        async def send(post):
            res = await (client.post(url, content=body) if post else client.get(url))
            check(res.status_code)

        await run_async(send)


async def with_aiohttp():
    import aiohttp
    import ssl

    out["note"] = f"aiohttp {aiohttp.__version__}"
    context = ssl.create_default_context() if url.startswith("https:") else None
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:

        async def send(post):
            async with (session.post(url, data=body) if post else session.get(url)) as res:
                await res.read()
                check(res.status)

        await run_async(send)


def with_requests():
    import requests

    out["note"] = f"requests {requests.__version__}"

    def sender():
        session = requests.Session()

        def send(post):
            res = session.post(url, data=body) if post else session.get(url)
            check(res.status_code)

        return send

    run_threads(sender)


def with_grpc():
    import grpc

    out["note"] = f"grpcio {grpc.__version__}"
    host = url.split("/")[2]
    if url.startswith("https:"):
        with open(os.environ["SSL_CERT_FILE"], "rb") as f:
            channel = grpc.secure_channel(host, grpc.ssl_channel_credentials(f.read()))
    else:
        channel = grpc.insecure_channel(host)
    call = channel.unary_unary("/bench.Echo/Call")
    run_threads(lambda: lambda post: call(b""))


if kind == "httpx-h2":
    asyncio.run(with_httpx(True))
elif kind == "httpx":
    asyncio.run(with_httpx(False))
elif kind == "aiohttp":
    asyncio.run(with_aiohttp())
elif kind == "requests":
    with_requests()
elif kind == "grpc":
    with_grpc()
else:
    sys.exit(f"unknown client {kind}")
out["note"] += f", Python {sys.version.split()[0]}"
for _ in range(open_requests):
    fail("no answer")
print(json.dumps(out), flush=True)
os._exit(0)  # threads may still wait for answers
