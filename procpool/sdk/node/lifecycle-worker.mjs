// The worker's side of a process pool (lifecycle-go/procpool), in one file.
//
//   import { serve } from "./lifecycle-worker.mjs";
//
//   serve(async (query) => {
//     for await (const part of work(query.payload, query.signal)) await query.send(part);
//     return { done: true };
//   });
//
// The handler gets one query at a time, unless serve is told of a concurrency:
// serve(handler, { concurrency: 10 }). What it returns, or its promise resolves
// to, is the result. What it sends before that are messages. What it throws is sent
// as the query's error, and the worker goes on. JSON.stringify encodes all of it:
// NaN becomes null, a BigInt is an error. JSON.parse decodes the payload, so its
// numbers have 53 bits. query.signal is an AbortSignal that fires when the pool
// cancels the query. A handler that computes without awaiting cannot see it, and
// cannot answer health checks.
//
// query.bytes is a Buffer with the bytes that the caller sent beside the payload, such
// as an image; it is empty for none. To answer with bytes, return a Data or send one:
// return new Data({ width: 200 }, png).
//
// The worker is ready once onStartup has returned or its promise has resolved, so that is
// the place to load a model. onShutdown runs after the last query; the process exits when
// it has returned or resolved, and the pool's ShutdownGrace bounds that:
// serve(handler, { onStartup: load, onShutdown: close }).
//
// Needs Node 16 or later and nothing else. docs/reference/procpool-wire.md has the protocol.

import { createConnection, Socket } from "node:net";
import process from "node:process";
import { Worker as Thread } from "node:worker_threads";

const ENV_SOCKET = "LIFECYCLE_WORKER_SOCKET";
const ENV_FD = "LIFECYCLE_WORKER_FD";
const ENV_MAX_FRAME = "LIFECYCLE_WORKER_MAX_FRAME";
const ENV_LIFELINE = "LIFECYCLE_WORKER_LIFELINE";

/** A value with bytes beside it, a Buffer or another Uint8Array, which are sent as they
 * are. Do not change them afterwards. */
export class Data {
  constructor(value, bytes = new Uint8Array(0)) {
    if (!(bytes instanceof Uint8Array)) throw new TypeError("the bytes are not a Uint8Array");
    this.value = value;
    this.bytes = bytes;
  }
}

/** One question. */
export class Query {
  #worker;
  #abort = new AbortController();
  #answered = false;

  constructor(worker, id, message, bytes) {
    this.#worker = worker;
    this.id = id;
    this.payload = message.payload;
    this.bytes = bytes; // beside the payload, empty for none
    this.metadata = message.metadata ?? {}; // texts of the caller
    this.traceparent = message.traceparent ?? ""; // of W3C Trace Context
    this.tracestate = message.tracestate ?? "";
    // The performance.now() at which the pool cancels it, undefined when it has not said.
    this.deadline = message.timeoutMs === undefined ? undefined : performance.now() + message.timeoutMs;
  }

  /** Fires when the pool cancels the query. */
  get signal() {
    return this.#abort.signal;
  }

  /** For the worker; handlers do not call it. */
  abort(reason) {
    this.#abort.abort(reason);
  }

  /** For the worker: from now on, sending throws. */
  answered() {
    this.#answered = true;
  }

  #write(message, bytes) {
    if (this.#answered) throw new Error("the query has been answered");
    return this.#worker.write(message, bytes);
  }

  /** Tells the pool the worker's own id of the work. */
  session(sessionId) {
    return this.#write({ type: "session", requestId: this.id, sessionId: String(sessionId) });
  }

  /** Asks the pool's process something. The promise resolves to its answer, and rejects
   * when it answers with an error, also because the query has ended. */
  call(method, params) {
    return this.#worker.call(method, (callId) =>
      this.#write({ type: "call", requestId: this.id, callId, method: String(method), params: json(params) }),
    );
  }

  /** Sends a part of the answer. The promise waits while the caller has enough to
   * read. Throws when content is not JSON or is longer than the pool accepts, and
   * when the query has been answered. */
  send(content) {
    const [value, bytes] = split(content);
    return this.#write({ type: "message", requestId: this.id, content: json(value) }, bytes);
  }
}

// A value that is JSON already, inside a message that is encoded later.
class Raw {
  constructor(text) {
    this.text = text;
  }
}

/** Returns a value and the bytes beside it, undefined for none. */
function split(value) {
  if (!(value instanceof Data)) return [value, undefined];
  return [value.value, value.bytes.length > 0 ? value.bytes : undefined];
}

/** Encodes a value. Throws where JSON.stringify throws or returns undefined. */
function json(value) {
  const text = JSON.stringify(value === undefined ? null : value);
  if (text === undefined) throw new TypeError(`a ${typeof value} that is not JSON`);
  return new Raw(text);
}

/** The text of anything that can be thrown. */
function describe(err) {
  try {
    return String(err?.message ?? err);
  } catch {
    return "it threw a value that has no text";
  }
}

const NONE = Buffer.alloc(0);

class Worker {
  #connection;
  #handler;
  #maxFrame;
  #running = new Map(); // id to query
  #concurrency;
  #ending = false;
  #left = false;
  #queries = 0;
  #began = performance.now();
  #chunks = [];
  #half; // the message whose bytes are read
  #missing = 0; // of them and the newline after them
  #calls = new Map(); // id to what settles the promise
  #lastCall = 0;
  #drained; // resolves once the connection has written, undefined while it takes more
  #onShutdown;

  constructor(connection, handler, maxFrame, concurrency, onShutdown) {
    this.#onShutdown = onShutdown;
    this.#concurrency = concurrency;
    this.#connection = connection;
    this.#handler = handler;
    this.#maxFrame = maxFrame;
    connection.on("data", (chunk) => this.#read(chunk));
    connection.on("error", (err) => console.error("lifecycle-worker: the pool is gone:", err.message));
    connection.on("close", () => this.#gone());
  }

  /** Resolves once the next message may be written. Throws when the message is too
   * long: an unawaited rejected promise would end the process. */
  write(message, bytes) {
    if (bytes !== undefined) {
      message = { type: message.type, requestId: message.requestId, bytes: bytes.length, ...message };
    }
    const fields = Object.entries(message).map(([name, value]) => `"${name}":${value instanceof Raw ? value.text : JSON.stringify(value)}`);
    const line = `{${fields.join(",")}}\n`;
    const size = Buffer.byteLength(line) + (bytes === undefined ? 0 : bytes.length + 1);
    if (size > this.#maxFrame) {
      throw new RangeError(`a message of ${size} bytes is longer than the limit of ${this.#maxFrame}`);
    }
    return this.#send(line, bytes) ? Promise.resolve() : this.#drain();
  }

  /** All who wait for the connection share one promise, and one pair of listeners. */
  #drain() {
    this.#drained ??= new Promise((resolve) => {
      const done = () => {
        this.#connection.off("drain", done);
        this.#connection.off("close", done);
        this.#drained = undefined;
        resolve();
      };
      this.#connection.on("drain", done);
      this.#connection.on("close", done);
    });
    return this.#drained;
  }

  /** Returns false when the connection has enough to write. */
  #send(line, bytes) {
    if (bytes === undefined) return this.#connection.write(line);
    this.#connection.cork(); // one write for the three
    this.#connection.write(line);
    this.#connection.write(bytes);
    const more = this.#connection.write("\n");
    this.#connection.uncork();
    return more;
  }

  /** Says ready, and what this worker is able to do. */
  ready() {
    this.write({ type: "ready", capabilities: ["bytes"], concurrency: this.#concurrency });
  }

  async call(method, send) {
    const id = String(++this.#lastCall);
    const reply = new Promise((resolve) => this.#calls.set(id, resolve));
    try {
      await send(id);
      const { result, error } = await reply;
      if (error !== undefined) throw new Error(`${method}: ${error}`);
      return result;
    } finally {
      this.#calls.delete(id);
    }
  }

  /** Answers with an error, cut to what fits. */
  #fail(requestId, text) {
    for (;;) {
      try {
        return this.write({ type: "error", requestId, error: text });
      } catch (err) {
        if (text === "") throw err;
        text = text.slice(0, text.length / 2);
      }
    }
  }

  #read(chunk) {
    for (let from = 0; ; ) {
      if (this.#half !== undefined) {
        const part = chunk.subarray(from, from + this.#missing);
        this.#chunks.push(part);
        this.#missing -= part.length;
        from += part.length;
        if (this.#missing > 0) return;
        const bytes = Buffer.concat(this.#chunks);
        const message = this.#half;
        this.#chunks = [];
        this.#half = undefined;
        if (bytes[bytes.length - 1] !== 10) {
          console.error("lifecycle-worker: the pool sent bytes of another length than it said");
          this.#connection.destroy();
          return;
        }
        this.#take(message, bytes.subarray(0, -1));
      }
      const end = chunk.indexOf(10, from);
      if (end < 0) {
        if (from < chunk.length) this.#chunks.push(chunk.subarray(from));
        return;
      }
      this.#chunks.push(chunk.subarray(from, end));
      const line = Buffer.concat(this.#chunks).toString("utf8");
      this.#chunks = [];
      from = end + 1;
      if (line.trim() === "") continue;
      let message;
      try {
        message = JSON.parse(line);
      } catch (err) {
        console.error("lifecycle-worker: the pool sent a line that is not JSON:", err.message);
        this.#connection.destroy();
        return;
      }
      if (message.bytes > 0) {
        this.#half = message;
        this.#missing = message.bytes + 1;
        continue;
      }
      this.#take(message, NONE);
    }
  }

  #take(message, bytes) {
    const { type, requestId } = message;
    switch (type) {
      case "query":
        if (typeof requestId !== "string" || requestId === "") return;
        if (!("payload" in message)) {
          this.#fail(requestId, "a query without payload");
        } else if (this.#running.size >= this.#concurrency || this.#running.has(requestId)) {
          this.#fail(requestId, `busy with ${this.#running.size} of ${this.#concurrency} queries`);
        } else {
          this.#work(new Query(this, requestId, message, bytes));
        }
        return;
      case "cancel":
        this.#running.get(requestId)?.abort(new Error("cancelled"));
        return;
      case "reply":
        this.#calls.get(message.callId)?.(message);
        return;
      case "health_check":
        this.write({
          type: "health_ok",
          uptime: Math.round(performance.now() - this.#began) / 1000,
          queriesProcessed: this.#queries,
        });
        return;
      case "shutdown":
        this.#ending = true;
        if (this.#running.size === 0) this.#leave();
        else if (!message.graceful) for (const query of this.#running.values()) query.abort(new Error("shutdown"));
        return;
      default: // from a newer pool
    }
  }

  async #work(query) {
    this.#running.set(query.id, query);
    let result, failed;
    try {
      result = await this.#handler(query);
    } catch (err) {
      failed = describe(err);
    }
    query.answered();
    this.#running.delete(query.id);
    this.#queries++;
    await this.#answer(query.id, result, failed);
    if (this.#ending && this.#running.size === 0) this.#leave();
  }

  #answer(requestId, result, failed) {
    if (failed !== undefined) return this.#fail(requestId, failed);
    try {
      const [value, bytes] = split(result);
      return this.write({ type: "complete", requestId, result: json(value) }, bytes);
    } catch (err) {
      return this.#fail(requestId, `the result: ${describe(err)}`);
    }
  }

  #leave() {
    if (this.#left) return;
    this.#left = true;
    this.#connection.write(JSON.stringify({ type: "shutdown_ack" }) + "\n", () => this.#exit(0)); // its exit closes the connection
  }

  async #exit(code) {
    try {
      await this.#onShutdown?.();
    } catch (err) {
      console.error(err);
      code = 1;
    }
    process.exit(code);
  }

  // The pool is dead, or has abandoned this worker: a running handler has no reader.
  #gone() {
    if (this.#left) return; // onShutdown runs
    for (const query of this.#running.values()) query.abort(new Error("the pool is gone"));
    for (const settle of this.#calls.values()) settle({ error: "the pool is gone" });
    const last = () => this.#exit(1);
    setTimeout(last, this.#running.size > 0 ? 2000 : 0);
    setTimeout(() => process.exit(1), 4000); // onShutdown may hang
  }
}

// The pool's process holds the other end of this pipe. When it ends, so does this
// process, even while a handler computes and no event of the main thread is handled.
const LIFELINE = `
const { Socket } = require("node:net");
const { workerData } = require("node:worker_threads");
const end = () => process.kill(process.pid, "SIGKILL");
new Socket({ fd: workerData, readable: true, writable: false }).on("close", end).on("error", end).resume();
`;

function holdLifeline() {
  const fd = Number(process.env[ENV_LIFELINE]);
  if (!fd) return;
  const thread = new Thread(LIFELINE, { eval: true, workerData: fd, stdin: false });
  thread.on("error", (err) => console.error("lifecycle-worker: no lifeline:", err.message));
  thread.unref();
}

/** Answers queries until the pool sends shutdown, then exits with code 0. Exits
 * with code 1 when the pool is gone. Throws when there is no pool. What onStartup throws
 * ends the process. */
export function serve(handler, { concurrency = 1, onStartup, onShutdown } = {}) {
  const start = (connection) => {
    const ready = async () => {
      holdLifeline();
      await onStartup?.();
      if (connection.destroyed) process.exit(1); // the pool is gone
      const maxFrame = Number(process.env[ENV_MAX_FRAME] ?? 16 << 20);
      new Worker(connection, handler, maxFrame, concurrency, onShutdown).ready();
    };
    if (connection.connecting) connection.on("connect", ready);
    else ready();
  };
  const fd = Number(process.env[ENV_FD]);
  if (fd) return start(new Socket({ fd, readable: true, writable: true })); // the pool has made the connection
  const path = process.env[ENV_SOCKET];
  if (!path) throw new Error(`this process was not started by a pool: neither ${ENV_SOCKET} nor ${ENV_FD} is set`);
  start(createConnection(path));
}
