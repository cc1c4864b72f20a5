// The worker's side of a process pool (lifecycle-go/procpool), in one file.
//
//   import { serve } from "./lifecycle-worker.mjs";
//
//   serve(async (query) => {
//     for await (const part of work(query.payload, query.signal)) await query.send(part);
//     return { done: true };
//   });
//
// The handler gets one query at a time. What it returns, or its promise resolves
// to, is the result; what it sends before are messages; what it throws is sent as
// the query's error, and the worker goes on. query.signal is an AbortSignal that
// fires when nobody waits for the answer any more: a handler that computes
// without ever awaiting cannot hear it, nor answer health checks.
//
// Needs Node 16 or later and nothing else. docs/procpool-wire.md has the protocol.

import { createConnection } from "node:net";
import process from "node:process";

const ENV_SOCKET = "LIFECYCLE_WORKER_SOCKET";
const ENV_MAX_FRAME = "LIFECYCLE_WORKER_MAX_FRAME";

/** One question. */
export class Query {
  #worker;
  #abort = new AbortController();

  constructor(worker, id, payload) {
    this.#worker = worker;
    this.id = id;
    this.payload = payload;
  }

  /** Fires when nobody waits for the answer any more. */
  get signal() {
    return this.#abort.signal;
  }

  /** Used by the worker; a handler has no reason to call it. */
  abort(reason) {
    this.#abort.abort(reason);
  }

  /** Tells the pool under which id the work is known here. */
  session(sessionId) {
    return this.#worker.write({ type: "session", requestId: this.id, sessionId: String(sessionId) });
  }

  /** Sends a part of the answer. The promise waits while the caller has enough to read. */
  send(content) {
    return this.#worker.write({ type: "message", requestId: this.id, content: content ?? null });
  }
}

class Worker {
  #connection;
  #handler;
  #maxFrame;
  #running = null;
  #ending = false;
  #queries = 0;
  #began = performance.now();
  #chunks = [];

  constructor(connection, handler, maxFrame) {
    this.#connection = connection;
    this.#handler = handler;
    this.#maxFrame = maxFrame;
    connection.on("data", (chunk) => this.#read(chunk));
    connection.on("error", (err) => console.error("lifecycle-worker: the pool is gone:", err.message));
    connection.on("close", () => this.#gone());
  }

  /** Resolves once the message may be followed by the next. */
  write(message) {
    const line = JSON.stringify(message) + "\n";
    const size = Buffer.byteLength(line);
    if (size > this.#maxFrame) {
      return Promise.reject(new RangeError(`a message of ${size} bytes is longer than the limit of ${this.#maxFrame}`));
    }
    if (this.#connection.write(line)) return Promise.resolve();
    return new Promise((resolve) => {
      const done = () => {
        this.#connection.off("drain", done);
        this.#connection.off("close", done);
        resolve();
      };
      this.#connection.on("drain", done);
      this.#connection.on("close", done);
    });
  }

  #read(chunk) {
    for (let from = 0; ; ) {
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
        console.error("lifecycle-worker: the pool sent what is not JSON:", err.message);
        this.#connection.destroy();
        return;
      }
      this.#take(message);
    }
  }

  #take(message) {
    const { type, requestId } = message;
    switch (type) {
      case "query":
        if (typeof requestId !== "string" || requestId === "") return;
        if (!("payload" in message)) {
          this.write({ type: "error", requestId, error: "a query without payload" });
        } else if (this.#running) {
          this.write({ type: "error", requestId, error: `busy with ${this.#running.id}` });
        } else {
          this.#work(new Query(this, requestId, message.payload));
        }
        return;
      case "cancel":
        if (this.#running?.id === requestId) this.#running.abort(new Error("cancelled"));
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
        if (!this.#running) this.#leave();
        else if (!message.graceful) this.#running.abort(new Error("shutdown"));
        return;
      default: // of a pool that is newer than this file
    }
  }

  async #work(query) {
    this.#running = query;
    let answer;
    try {
      const result = await this.#handler(query);
      answer = { type: "complete", requestId: query.id, result: result ?? null };
      JSON.stringify(answer);
    } catch (err) {
      answer = { type: "error", requestId: query.id, error: String(err?.message ?? err) };
    }
    this.#running = null;
    this.#queries++;
    try {
      await this.write(answer);
    } catch (err) {
      await this.write({ type: "error", requestId: query.id, error: `the result: ${err.message}` });
    }
    if (this.#ending) this.#leave();
  }

  #leave() {
    this.#connection.end(JSON.stringify({ type: "shutdown_ack" }) + "\n", () => process.exit(0));
  }

  // The pool is dead, or has given us up: what still runs has nobody to answer.
  #gone() {
    if (this.#ending && !this.#running) return;
    this.#running?.abort(new Error("the pool is gone"));
    setTimeout(() => process.exit(1), this.#running ? 2000 : 0);
  }
}

/** Does queries until the pool says that it is to shut down, and exits: with
 * code 0 then, and with 1 when the pool is gone. Throws when there is none. */
export function serve(handler) {
  const path = process.env[ENV_SOCKET];
  if (!path) throw new Error(`no pool has started this process: ${ENV_SOCKET} is not set`);
  const connection = createConnection(path);
  const worker = new Worker(connection, handler, Number(process.env[ENV_MAX_FRAME] ?? 16 << 20));
  connection.on("connect", () => worker.write({ type: "ready" }));
}
