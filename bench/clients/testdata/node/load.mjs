// load runs workers that call send(post) one request after the other, and prints what
// became of them. send must reject for a request that failed.
export async function load({ send, workers, seconds, pause, note }) {
  const began = performance.now();
  process.stdout.write('began\n');
  const out = { sent: 0, failed: 0, errors: {}, at: {}, note: note ?? '' };
  const fail = (text) => {
    out.failed++;
    out.errors[text] = (out.errors[text] ?? 0) + 1;
    (out.at[text] ??= []).push(Math.round(performance.now() - began));
  };
  let open = 0;
  const worker = async (post) => {
    while (performance.now() - began < seconds * 1000) {
      out.sent++;
      open++;
      try {
        await send(post);
      } catch (err) {
        fail(describe(err));
        await sleep(20);
      }
      open--;
      post = !post;
      await sleep(Math.random() * pause);
    }
  };
  const all = Promise.all(Array.from({ length: workers }, (_, i) => worker(i % 2 === 1)));
  await Promise.race([all, sleep(seconds * 1000 + 8000)]);
  for (; open > 0; open--) fail('no answer');
  process.stdout.write(JSON.stringify(out) + '\n', () => process.exit(0));
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// describe gives an error with its causes.
function describe(err) {
  const parts = [];
  for (let e = err, n = 0; e && n < 4; e = e.cause ?? e.errors?.[0], n++) {
    parts.push(`${e.code ? e.code + ' ' : ''}${e.message ?? e}`);
  }
  return parts.join(': ').replace(/127\.0\.0\.1:\d+/g, 'ADDR');
}
