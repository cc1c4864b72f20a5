// Echoes in workerpool with processes. Arguments: the pool, and the size of a payload.
// For each line with a number on standard input it makes so many round trips, one after
// the other, and prints the time of each in nanoseconds, on one line. Payloads of 1 MB
// are bytes, which need the serialization "advanced", smaller ones are text.

import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import workerpool from "workerpool";

const size = Number(process.argv[3]);
const large = size >= 1 << 20;
const payload = large ? Buffer.alloc(size, "x") : "x".repeat(size);
const pool = workerpool.pool(fileURLToPath(new URL("./echo.mjs", import.meta.url)), {
  workerType: "process",
  minWorkers: 1,
  maxWorkers: 1,
  forkOpts: large ? { serialization: "advanced" } : {},
});
const trip = () => pool.exec("echo", [payload]);
const first = await trip();
if (large ? Buffer.compare(first, payload) !== 0 : first !== payload) throw new Error("it does not echo");
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const took = [];
  for (let i = 0; i < Number(line); i++) {
    const began = process.hrtime.bigint();
    if ((await trip()).length !== size) throw new Error("it does not echo");
    took.push(process.hrtime.bigint() - began);
  }
  console.log(took.join(" "));
}
await pool.terminate();
