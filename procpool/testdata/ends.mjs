// A worker that writes what happens to a file.

import { appendFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { serve } from "../sdk/node/lifecycle-worker.mjs";

const say = (line) => appendFileSync(`${process.env.ENDS}/${process.pid}`, `${line}\n`);
process.on("exit", () => say("exit"));

serve((query) => {
  say("query");
  console.log("line", query.payload);
  if (query.payload === "die") process.reallyExit(3);
  return process.pid;
}, {
  onStartup: () => sleep(10).then(() => say("startup")),
  onShutdown: () => (process.env.HANG ? sleep(3600_000) : sleep(10).then(() => say("shutdown"))),
});
