import { serve } from "./lifecycle-worker.mjs";

serve(async (query) => {
  const words = query.payload.text.split(" ");
  for (const word of words) {
    if (query.signal.aborted) return null;
    await query.send(word.toUpperCase());
  }
  return { words: words.length };
});
