// A worker that sends several messages at a time.

import { serve } from "../sdk/node/lifecycle-worker.mjs";

serve(async (query) => {
  await Promise.all(Array.from({ length: 32 }, () => query.send("x".repeat(100_000))));
  return "sent";
});
