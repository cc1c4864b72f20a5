"""The worker's side of a process pool (lifecycle-go/procpool), in one file.

    import lifecycle_worker

    def handle(query):
        for part in work(query.payload):
            if query.cancelled:
                raise lifecycle_worker.Cancelled
            query.send(part)
        return {"done": True}

    if __name__ == "__main__":  # multiprocessing imports this file again
        lifecycle_worker.serve(handle)

The handler gets one query at a time, in the main thread, unless serve is told of a
concurrency. What it returns is the
result. What it sends before that are messages. An exception is sent as the
query's error, and the worker goes on; only SystemExit and KeyboardInterrupt end
it. json.dumps encodes all of it; NaN and the infinities are errors, because JSON
does not have them.

query.bytes has the bytes that the caller sent beside the payload, such as an image.
To answer with bytes, return a Data or send one:

    return lifecycle_worker.Data({"width": 200}, png)

An array of numpy travels as its bytes, with its dtype and shape in the value: return it,
or a Data with it. query.array() is the array that came with the query, whose payload says
"dtype" and "shape" in the same way. This file does not need numpy itself.

The worker is ready once on_startup has returned, so that is the place to load a model.
on_shutdown runs after the last query. Then the interpreter ends as that of any program
does: functions of atexit run and files are flushed, within the pool's ShutdownGrace.

    lifecycle_worker.serve(handle, on_startup=load, on_shutdown=close)

The protocol has its own socket, so the handler may print, a line at a time.
Needs Python 3.7 or later and nothing else. docs/reference/procpool-wire.md has the
protocol.
"""

import io
import json
import os
import queue
import re
import signal
import socket
import struct
import sys
import threading
import time
import traceback

__all__ = ["serve", "Query", "Data", "Cancelled", "CallError", "NoPool"]

ENV_SOCKET = "LIFECYCLE_WORKER_SOCKET"
ENV_FD = "LIFECYCLE_WORKER_FD"
ENV_MAX_FRAME = "LIFECYCLE_WORKER_MAX_FRAME"

CHUNK = 64 << 10  # read at once
PATIENCE = 0.01  # seconds that a handler may take before a second thread reads

# The beginning of a query, to find the id of one whose payload is not readable.
QUERY = re.compile(rb'\{"type":"query","requestId":("(?:[^"\\]|\\.)+"),(?:"bytes":(\d+),)?')

encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Cancelled(Exception):
    """A handler raises it when its query was cancelled."""


class NoPool(Exception):
    """This process was not started by a pool."""


class TooLong(Exception):
    """The message is longer than the pool accepts. It was not sent."""


class CallError(Exception):
    """The pool's process answered a call with an error."""


class Data:
    """A value with bytes beside it, which are sent as they are: anything that has the
    buffer protocol. Do not change them afterwards. With an array of numpy, a value that is
    None or a dict also gets its dtype and shape."""

    def __init__(self, value=None, bytes=b""):
        if is_array(bytes) and (value is None or isinstance(value, dict)):
            if bytes.dtype.hasobject:
                raise TypeError("an array of Python objects has no bytes to send")
            if bytes.dtype.names:  # dtype.str does not have them
                raise TypeError("an array with fields would lose their names: send each field")
            value = {"dtype": bytes.dtype.str, "shape": list(bytes.shape), **(value or {})}
        self.value = value
        self.bytes = bytes


def is_array(value):
    """Whether it is an array of numpy, which may be absent."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def flat(data):
    """The bytes of anything with the buffer protocol, in C order. They are copied only
    when they do not lie one after the other."""
    if is_array(data) and data.dtype.kind in "mM":  # times, which have no buffer protocol
        data = data.view("i8")
    view = memoryview(data)
    if view.nbytes == 0:
        return b""
    try:
        return view.cast("B")
    except (TypeError, ValueError):  # strided, or of a format that cast does not know
        return view.tobytes()


class Query:
    """One query. Its methods may be called from any thread. Sending raises once
    the handler has returned."""

    def __init__(self, worker, request_id, message, data):
        self._worker = worker
        self._cancelled = threading.Event()
        self._answered = False  # guarded by the worker's _writing
        self.id = request_id
        self.payload = message["payload"]
        self.bytes = data  # beside the payload, b"" for none
        self.metadata = message.get("metadata", {})  # texts of the caller
        self.traceparent = message.get("traceparent", "")  # of W3C Trace Context
        self.tracestate = message.get("tracestate", "")
        # The time.monotonic() at which the pool cancels it, None when it has not said.
        timeout = message.get("timeoutMs")
        self.deadline = None if timeout is None else time.monotonic() + timeout / 1000

    def array(self):
        """The bytes as an array of numpy that cannot be written to, with the dtype and the
        shape that the payload names."""
        import numpy

        dtype = numpy.dtype(self.payload["dtype"])
        if dtype.hasobject:  # the bytes would be taken for pointers
            raise TypeError("an array of Python objects has no bytes to send")
        array = numpy.ndarray(tuple(self.payload["shape"]), dtype, self.bytes)
        if array.nbytes != len(self.bytes):
            raise ValueError("the array has %d bytes, and %d came" % (array.nbytes, len(self.bytes)))
        return array

    @property
    def cancelled(self):
        """Whether the pool has cancelled the query."""
        return self._cancelled.is_set()

    def wait_cancelled(self, seconds):
        """Wait up to so many seconds. Return True as soon as it is cancelled."""
        return self._cancelled.wait(seconds)

    def session(self, session_id):
        """Tell the pool the worker's own id of the work."""
        self._worker.write({"type": "session", "requestId": self.id, "sessionId": str(session_id)}, self)

    def call(self, method, params=None):
        """Ask the pool's process something and return its answer. Raise CallError
        when it answers with an error, also because the query has ended."""
        return self._worker.call(self, method, params)

    def send(self, content):
        """Send a part of the answer. Waits while the caller has enough to read."""
        self._worker.write_value({"type": "message", "requestId": self.id}, "content", content, self)


class _Stream(io.RawIOBase):
    """What a socket receives. A large read waits for all of it in one call: the
    reader asks for no more than the pool has promised."""

    def __init__(self, connection):
        super().__init__()
        self._receive = connection.recv_into

    def readable(self):
        return True

    def readinto(self, into):
        return self._receive(into, 0, socket.MSG_WAITALL if len(into) > CHUNK else 0)


class _Worker:
    def __init__(self, connection, max_frame, concurrency):
        self._connection = connection
        self._max_frame = max_frame
        self._concurrency = concurrency
        self._lines = io.BufferedReader(_Stream(connection), CHUNK)  # one thread at a time reads
        self._writing = threading.Lock()
        self._wake = threading.Event()  # for watch
        self._state = threading.Lock()  # guards the fields below
        self._running = {}  # id to query
        self._began = time.monotonic()
        self._queries = 0
        self._calls = {}  # id to the queue that waits for the reply; None once the pool is gone
        self._last_call = 0
        self._now = None  # what the main thread works at; None while it waits for work
        self._watching = False  # the thread of watch reads
        self._asleep = False  # that thread waits until there is work
        self._todo = queue.SimpleQueue()  # work that another thread has read

    def write(self, message, query=None, data=b""):
        line = encode(message).encode() + b"\n"
        size = len(line) + (len(data) + 1 if data else 0)
        if size > self._max_frame:
            raise TooLong("a message of %d bytes is longer than the limit of %d" % (size, self._max_frame))
        parts = (line, data, b"\n") if data else (line,)
        with self._writing:
            if query is not None and query._answered:
                raise RuntimeError("the query has been answered")
            sent = self._connection.sendmsg(parts)
            if sent < size:  # a signal came
                self._connection.sendall(memoryview(b"".join(parts))[sent:])

    def write_value(self, message, field, value, query=None):
        """Write a message with a value, which may be a Data."""
        data = b""
        if is_array(value):
            value = Data(None, value)
        if isinstance(value, Data):
            data, value = flat(value.bytes), value.value
        if data:
            message["bytes"] = len(data)
        message[field] = value
        self.write(message, query, data)

    def fail(self, request_id, text):
        """Answer with an error, cut to what fits."""
        while True:
            try:
                return self.write({"type": "error", "requestId": request_id, "error": text})
            except TooLong:
                if not text:
                    raise
                text = text[: len(text) // 2]

    def call(self, query, method, params):
        answer = queue.SimpleQueue()
        with self._state:
            if self._calls is None:
                raise CallError("the pool is gone")
            self._last_call += 1
            call_id = str(self._last_call)
            self._calls[call_id] = answer
        try:
            self.write({"type": "call", "requestId": query.id, "callId": call_id, "method": str(method), "params": params}, query)
            self._wake.set()
            reply = answer.get()
        finally:
            with self._state:
                if self._calls is not None:
                    self._calls.pop(call_id, None)
        if "error" in reply:
            raise CallError("%s: %s" % (method, reply["error"]))
        return reply.get("result")

    def _read(self):
        """Take messages until one is work, and return that: a query, "shutdown", or None
        when the pool is gone."""
        try:
            while True:
                line = self._lines.readline()
                if not line.endswith(b"\n"):
                    break  # the end, or a truncated line: the pool is gone
                if not line.strip():
                    continue
                message = self._parse(line)
                length = message.get("bytes", 0)
                data = self._lines.read(length) if length else b""
                if len(data) < length or length and self._lines.read(1) != b"\n":
                    break  # truncated as well
                work = self._take(message, data)
                if work is not None:
                    return work
        except Exception as err:  # any error: a worker that does not read must end
            print("lifecycle_worker: the pool is gone:", describe(err), file=sys.stderr)
        self._gone()
        return None

    def _read_on(self):
        """Read to the end, for handlers in other threads."""
        work = ""
        while work is not None:
            work = self._read()
            self._todo.put(work)

    def _watch(self):
        """Read while the handler takes longer than PATIENCE or waits for a reply, so that it
        sees a cancel. The main thread reads otherwise: handing a query from thread to thread
        takes as long as the rest of a round trip."""
        late = False
        while True:
            with self._state:
                seen = self._now
                self._asleep = seen is None
            self._wake.wait(None if seen is None else PATIENCE)
            self._wake.clear()
            with self._state:
                late = self._now is not None and (self._now is seen or bool(self._calls))
                self._watching = late
            while late:
                work = self._read()
                with self._state:
                    self._watching = late = work == "shutdown"  # the handler still runs
                    self._todo.put(work)
                if work is None:
                    return

    def _next(self):
        """The next work of the main thread."""
        if self._concurrency > 1:
            return self._todo.get()
        with self._state:
            self._now = None
            mine = not self._watching and self._todo.empty()
        work = self._read() if mine else self._todo.get()
        with self._state:
            self._now = work
            wake, self._asleep = self._asleep, False
        if wake:
            self._wake.set()
        return work

    def _parse(self, line):
        """Python does not read all that is JSON: what is nested too deep, and
        numbers of thousands of digits. That is the query's error."""
        try:
            return json.loads(str(line, "utf-8"))
        except (ValueError, RecursionError) as err:
            begin = QUERY.match(line)
            if not begin:
                raise
            self.fail(json.loads(begin.group(1)), "the payload: " + describe(err))
            return {"bytes": int(begin.group(2) or 0)}

    def _gone(self):
        with self._state:
            for query in self._running.values():
                query._cancelled.set()
            waiting, self._calls = self._calls, None
        for answer in waiting.values():
            answer.put({"error": "the pool is gone"})
        # End the process even when the handler ignores the cancellation: no other
        # process would.
        leave = threading.Timer(2, os._exit, args=(1,))
        leave.daemon = True
        leave.start()

    def _take(self, message, data):
        """Act on a message. Return the work that it is, None when it is none."""
        kind = message.get("type")
        request_id = message.get("requestId")
        if kind == "query":
            if not isinstance(request_id, str) or not request_id or "payload" not in message:
                if isinstance(request_id, str) and request_id:
                    self.fail(request_id, "a query without payload")
                return None
            with self._state:
                busy = len(self._running) >= self._concurrency or request_id in self._running
                if not busy:
                    query = self._running[request_id] = Query(self, request_id, message, data)
            if not busy:
                return query
            self.fail(request_id, "busy with %d of %d queries" % (len(self._running), self._concurrency))
        elif kind == "cancel":
            with self._state:
                if request_id in self._running:
                    self._running[request_id]._cancelled.set()
        elif kind == "health_check":
            with self._state:
                done = self._queries
            self.write({"type": "health_ok", "uptime": round(time.monotonic() - self._began, 3), "queriesProcessed": done})
        elif kind == "reply":
            with self._state:
                answer = self._calls.get(message.get("callId"))
            if answer is not None:
                answer.put(message)
        elif kind == "dump":
            self._show_stacks()
        elif kind == "shutdown":
            if not message.get("graceful"):
                with self._state:
                    for query in self._running.values():
                        query._cancelled.set()
            return "shutdown"
        return None  # other types are from a newer pool

    def ready(self):
        """Say ready, and what this worker is able to do."""
        self.write({"type": "ready", "capabilities": ["stacks", "bytes"], "concurrency": self._concurrency})

    def _show_stacks(self):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        text = "".join(
            "thread %s:\n%s" % (names.get(ident, ident), "".join(traceback.format_stack(frame)))
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        )[: 64 << 10]
        while text:
            try:
                return self.write({"type": "stacks", "stacks": text})
            except TooLong:
                text = text[: len(text) // 2]

    def work(self, handler):
        """Answer queries until the pool sends shutdown or is gone. Return the exit code."""
        reader = self._watch if self._concurrency == 1 else self._read_on
        threading.Thread(target=reader, daemon=True).start()
        threads = set()
        while True:
            query = self._next()
            if query is None:
                return 1
            if query == "shutdown":
                for thread in threads:
                    thread.join()
                self.write({"type": "shutdown_ack"})
                return 0
            if self._concurrency == 1:
                self._handle(handler, query)
                continue
            threads = {thread for thread in threads if thread.is_alive()}
            thread = threading.Thread(target=self._handle_in_thread, args=(handler, query), daemon=True)
            threads.add(thread)
            thread.start()

    def _handle_in_thread(self, handler, query):
        try:
            self._handle(handler, query)
        except BaseException as err:  # the connection failed, or the handler ends the process
            print("lifecycle_worker:", describe(err), file=sys.stderr, flush=True)
            os._exit(1)

    def _handle(self, handler, query):
        result = failed = None
        try:
            result = handler(query)
        except Cancelled:
            failed = "cancelled"
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as err:  # any error of the handler
            failed = describe(err)
        with self._writing:
            query._answered = True
        with self._state:  # before the pool can send the next one
            del self._running[query.id]
            self._queries += 1
        if failed is not None:
            self.fail(query.id, failed)
            return
        try:
            self.write_value({"type": "complete", "requestId": query.id}, "result", result)
        except OSError:
            raise  # the connection failed
        except Exception as err:  # the result is not JSON or is too long
            self.fail(query.id, "the result: " + describe(err))


def describe(err):
    """The text of an exception, even when its __str__ raises."""
    try:
        return "%s: %s" % (type(err).__name__, err)
    except Exception:
        return type(err).__name__


def die_with_parent(connection):
    """Have the kernel kill this process when its parent dies (prctl(2)). The pool
    asks for that when it has started this process itself. This is for a worker behind
    a shell: it ends when its connection does, but not while a handler computes in C
    code that does not release the interpreter."""
    if not sys.platform.startswith("linux"):
        return
    pool = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    if pool == os.getppid():
        return
    try:
        import ctypes  # takes a tenth of the interpreter's start

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError) as err:
        print("lifecycle_worker: no parent-death signal:", describe(err), file=sys.stderr)


def connect():
    """Connect to the pool, or take the connection that the pool has made."""
    fd = os.environ.get(ENV_FD)
    if fd:
        os.set_inheritable(int(fd), False)
        return socket.socket(fileno=int(fd))
    path = os.environ.get(ENV_SOCKET)
    if not path:
        raise NoPool("this process was not started by a pool: neither %s nor %s is set" % (ENV_SOCKET, ENV_FD))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection


def serve(handler, concurrency=1, on_startup=None, on_shutdown=None):
    """Answer queries until the pool sends shutdown, then exit with code 0. Exit
    with code 1 when the pool is gone. Raise NoPool when there is no pool. It exits by
    SystemExit, so call it in the main thread.

    With a concurrency of more than 1 the worker takes so many queries at a time,
    up to 1000, each in a thread of its own.

    on_startup is called before the worker is ready; what it raises ends the process.
    on_shutdown is called after the last query, also when the pool is gone."""
    for stream in (sys.stdout, sys.stderr):  # what was printed is not lost in a crash
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    connection = connect()
    die_with_parent(connection)
    if on_startup is not None:
        on_startup()
    worker = _Worker(connection, int(os.environ.get(ENV_MAX_FRAME, 16 << 20)), concurrency)
    worker.ready()
    try:
        code = worker.work(handler)
    except OSError as err:
        print("lifecycle_worker: the pool is gone:", err, file=sys.stderr)
        code = 1
    if on_shutdown is not None:
        on_shutdown()
    sys.exit(code)
