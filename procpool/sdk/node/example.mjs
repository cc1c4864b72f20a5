// A worker in JavaScript, with the same questions as the other examples.

import { setTimeout as sleep } from "node:timers/promises";
import { Data, serve } from "./lifecycle-worker.mjs";

serve(async (query) => {
  const ask = query.payload ?? {};
  switch (ask.op) {
    case "count":
      await query.session(`session of ${query.id}`);
      for (let i = 0; i < ask.n; i++) {
        if (query.signal.aborted) throw new Error("cancelled");
        await query.send(i);
      }
      return ask.n;
    case "sleep":
      await sleep(ask.seconds * 1000, undefined, { signal: query.signal });
      return "slept";
    case "fail":
      throw new Error(`failed: ${ask.text}`);
    case "exit":
      console.error("about to exit");
      return process.exit(ask.n);
    case "call": // ask the pool's process
      return query.call(ask.text, ask.value);
    case "about": {
      const { metadata, traceparent, tracestate, deadline } = query;
      return { metadata, traceparent, tracestate, deadline: deadline !== undefined };
    }
    case "pid":
      return process.pid;
    default:
      return new Data(query.payload, query.bytes);
  }
}, { concurrency: Number(process.argv[2] ?? 1) });
