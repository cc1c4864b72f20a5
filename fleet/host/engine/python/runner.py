"""Runs hosted code: the child of package isolate for Python."""

import base64
import json
import os
import resource
import sys

import lifecycle_worker

limit_output = limit_outputs = limit_call = 0  # of the load
query = None  # in progress
index = 0  # of the message in it


class Reject(Exception):
    """Gives a message up for good."""


class Limit(BaseException):
    """A limit was broken. No "except Exception" of the code's catches it."""


def reject(reason):
    raise Reject(str(reason))


class Timer:
    """A timer that is due, or one of a list."""

    def __init__(self, fields, attempt=None):
        self.name, self.due, self.attempt = fields["name"], int(fields["due"]), attempt


class Message:
    def __init__(self, fields):
        self.worker = fields["worker"]
        self.id = fields["id"]
        self.topic = fields["topic"]
        self.attempt = fields["attempt"]
        self.fence = fields["fence"]
        self.headers = fields.get("headers") or {}
        self.trace = fields.get("trace", "")
        self.data = base64.b64decode(fields["data"] or "")
        timer = fields.get("timer")
        self.timer = Timer(timer, self.attempt) if timer else None

    @property
    def text(self):
        return self.data.decode("utf-8", "replace")


def ask(op, fields, value=None):
    """Calls the host for the message in progress."""
    fields["i"] = index
    body = value if value is not None else fields.get("request", {}).get("body", "")
    if len(body) > limit_call * (1 if value is not None else 4 / 3) + 4:
        raise RuntimeError("%s: the value is larger than %d bytes" % (op, limit_call))
    if value is not None:
        fields["value"] = base64.b64encode(value).decode()
    try:
        return query.call(op, fields)
    except lifecycle_worker.CallError as err:
        raise RuntimeError(str(err).partition(": ")[2])


class State:
    def _ask(self, op, key, value=None):
        if not isinstance(key, str):
            raise TypeError("a key is text")
        if isinstance(value, str):
            value = value.encode()
        answer = ask(op, {"key": key}, value)
        return base64.b64decode(answer.get("value") or "") if answer.get("found") else None

    def get_bytes(self, key):
        return self._ask("get", key)

    def get(self, key):
        value = self._ask("get", key)
        return None if value is None else value.decode("utf-8", "replace")

    def put(self, key, value):
        self._ask("put", key, value)

    def delete(self, key):
        self._ask("delete", key)


class Timers:
    def set(self, name, delay=None, data=b"", at=None):
        if isinstance(data, str):
            data = data.encode()
        fields = {"key": self._name(name)}
        if hasattr(at, "timestamp"):
            at = int(at.timestamp() * 1000)
        for field, value in ("after", delay), ("at", at):
            if value is not None:
                fields[field] = float(value)
        ask("timer.set", fields, bytes(data))

    def cancel(self, name):
        ask("timer.cancel", {"key": self._name(name)})

    def list(self):
        return [Timer(fields) for fields in ask("timer.list", {}).get("timers") or []]

    def _name(self, name):
        if not isinstance(name, str):
            raise TypeError("the name of a timer is text")
        return name


class Response:
    def __init__(self, fields):
        self.status = fields["status"]
        self.url = fields["url"]
        self.headers = fields.get("headers") or {}
        self.data = base64.b64decode(fields.get("body") or "")

    @property
    def text(self):
        return self.data.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.data)


def fetch(url, method="GET", headers=None, body=None):
    if isinstance(body, str):
        body = body.encode()
    asked = {"url": str(url), "method": str(method)}
    if headers:
        asked["headers"] = {str(k): [str(x) for x in v] if isinstance(v, (list, tuple)) else [str(v)] for k, v in headers.items()}
    if body is not None:
        asked["body"] = base64.b64encode(body).decode()
    return Response(ask("fetch", {"request": asked})["response"])


class Printed:
    """Standard output and error while code runs."""

    def __init__(self):
        self.left, self.send, self.line = limit_output, None, ""

    def begin(self, send):
        self.left, self.send, self.line = limit_output, send, ""

    def write(self, text):
        self.left -= len(text)
        if self.left < 0:
            self.line = ""
            raise Limit("output")
        self.line += text
        *lines, self.line = self.line.split("\n")
        if self.send:
            for line in lines:
                self.send({"print": line[:4096]})
        return len(text)

    def flush(self):
        pass

    def end(self):
        if self.line and self.send:
            self.send({"print": self.line[:4096]})
        self.send = None


printed = Printed()
names = {"__name__": "hosted", "state": State(), "timers": Timers(), "reject": reject, "Reject": Reject, "fetch": fetch}
loaded = False


def load(fields):
    """Loads code within limits that nothing in this process can raise again."""
    global loaded, limit_output, limit_outputs, limit_call
    limits, limit_call = fields["limits"], fields["maxCall"]
    limit_output, limit_outputs = limits["output"], limits["outputs"]
    if hasattr(resource, "RLIMIT_AS"):
        # The interpreter has mapped what it needs by now.
        with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else open(os.devnull) as f:
            mapped = int((f.read().split() or ["65536"])[0]) * resource.getpagesize()
        most = mapped + limits["memory"] + (16 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(fields.get("env") or {})
    code = bytes(query.bytes)
    printed.left = limit_output
    exec(compile(code, "hosted.py", "exec"), names)
    if not callable(names.get("handle")):
        raise ValueError("it defines no function handle(message)")
    loaded = True


def plain(value, level=0):
    """A result as JSON can carry it. One that is too large is not copied first."""
    if level > 8:
        raise ValueError("the handler's result nests more than 8 levels")
    if isinstance(value, (str, bytes, bytearray)) and len(value) > 2 * limit_output:
        raise Limit("output")
    if value is None or isinstance(value, (str, bool, float)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        if len(value) > limit_outputs:
            raise Limit("outputs")
        return [plain(v, level + 1) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v, level + 1) for k, v in value.items()}
    return {"$type": type(value).__name__}


def describe(err):
    where = ""
    trace = err.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "hosted.py":
            where = "hosted.py:%d: " % trace.tb_lineno
        trace = trace.tb_next
    return "%s%s: %s" % (where, type(err).__name__, err)


def serve(asked):
    global query, index
    query = asked
    loading = query.payload.get("load")
    handling = query.payload.get("handle")
    printed.begin(query.send)
    sys.stdout = sys.stderr = printed
    try:
        if loading is not None:
            load(loading)
            return {}
        if handling is None:
            return {}
        if not loaded:
            return {"empty": True}
        for index, fields in enumerate(handling):
            printed.begin(query.send)
            result = plain(names["handle"](Message(fields)))
            if len(json.dumps(result)) > 2 * limit_output:
                raise Limit("output")
            printed.end()
            if index == len(handling) - 1:
                return {"result": result}
            query.send({"answer": {"result": result}})
    except Limit as err:
        return {"limit": str(err), "badCode": loading is not None}
    except MemoryError:
        return {"limit": "memory", "badCode": loading is not None}
    except Reject as err:
        return {"reject": str(err)}
    except SystemExit as err:
        return {"error": "it called exit(%s)" % err, "badCode": loading is not None}
    except Exception as err:
        return {"error": describe(err), "badCode": loading is not None}
    finally:
        try:
            printed.end()
        except Limit:
            pass
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


lifecycle_worker.serve(serve)
