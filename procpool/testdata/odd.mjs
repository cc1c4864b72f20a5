// A worker whose handlers return and throw unexpected values.

import process from "node:process";
import { serve } from "../sdk/node/lifecycle-worker.mjs";

function deep(n) {
  let out = [];
  for (let i = 0; i < n; i++) out = [out];
  return out;
}

let left;

serve((query) => {
  switch (query.payload?.op ?? query.payload) {
    case "deaf-pid":
      query.send(process.pid);
      return new Promise((resolve) => setTimeout(resolve, 3600_000));
    case "spin-pid": // no event is handled
      return query.send(process.pid).then(() => new Promise((resolve) => setTimeout(resolve, 50))).then(() => {
        for (;;);
      });
    case "pid":
      return process.pid;
    case "nan":
      return NaN;
    case "deep":
      return deep(1_000_000);
    case "self": {
      const out = [];
      out.push(out);
      return out;
    }
    case "function":
      return () => {};
    case "symbol":
      return Symbol("s");
    case "nothing as JSON":
      return { toJSON() {} };
    case "send function":
      return query.send(() => {});
    case "big":
      return 2n ** 200n;
    case "behind": {
      const was = left;
      left = query;
      was?.send("late");
      return "left behind";
    }
    case "undefined":
      return undefined;
    case "throw null":
      throw null;
    case "throw undefined":
      throw undefined;
    case "throw bare":
      throw Object.create(null);
    case "throw symbol":
      throw Symbol("odd");
    case "throw trap":
      throw {
        get message() {
          throw new Error("no words");
        },
      };
    case "throw number":
      throw 42;
    case "reject bare":
      return Promise.reject(Object.create(null));
    case "thenable":
      return { then(_, no) { no("from a thenable"); } };
    case "long":
      return "x".repeat(2 << 20);
    case "send long":
      return query.send("x".repeat(2 << 20));
    case "long error":
      throw new Error("x".repeat(2 << 20));
    case "surrogate":
      return "\ud800 😀";
    default:
      return query.payload;
  }
});
