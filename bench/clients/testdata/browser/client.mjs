// usage: node client.mjs CLIENT URL WORKERS SECONDS PAUSE_MS, with CLIENT websocket, events or fetch
//
// Serves a page, opens it in Chromium, and prints what the page says.
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [kind, url, workers, seconds, pause] = process.argv.slice(2);
const page = readFileSync(new URL('page.html', import.meta.url));

const server = http.createServer((req, res) => {
  if (req.method === 'GET') return res.setHeader('Content-Type', 'text/html').end(page);
  let text = '';
  req.on('data', (data) => { text += data; });
  req.on('end', () => {
    res.end();
    if (req.url === '/began') return process.stdout.write('began\n');
    const out = JSON.parse(text);
    explain(out);
    process.stdout.write(JSON.stringify(out) + '\n', () => process.exit(0)); // the harness ends Chromium
  });
});

// Chromium keeps from pages why a request failed. The developer tools' protocol tells, here
// over a pipe: messages of JSON, each with a zero byte behind it.
const reasons = [];
server.listen(0, '127.0.0.1', () => {
  const query = new URLSearchParams({ kind, url, workers, seconds, pause });
  const address = `http://127.0.0.1:${server.address().port}/?${query}`;
  const browser = spawn('chromium', [
    '--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-timer-throttling',
    '--ignore-certificate-errors', `--user-data-dir=${mkdtempSync(join(tmpdir(), 'browser-'))}`, '--remote-debugging-pipe',
  ], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
  browser.on('error', (err) => { console.error(err); process.exit(1); });
  const [, , , input, output] = browser.stdio;
  let id = 0;
  const tell = (method, params, sessionId) => input.write(JSON.stringify({ id: ++id, method, params, sessionId }) + '\0');
  const urls = new Map();
  const hear = ({ result, method, params, sessionId }) => {
    if (result?.targetId) tell('Target.attachToTarget', { targetId: result.targetId, flatten: true });
    if (method === 'Target.attachedToTarget') {
      tell('Network.enable', {}, params.sessionId);
      tell('Page.navigate', { url: address }, params.sessionId);
    }
    if (method === 'Network.requestWillBeSent') urls.set(params.requestId, params.request.url);
    if (method === 'Network.loadingFailed' && urls.get(params.requestId) === url) reasons.push(params.errorText);
    if (method === 'Network.loadingFinished') urls.delete(params.requestId);
  };
  let rest = '';
  output.setEncoding('utf8');
  output.on('data', (data) => {
    const messages = (rest + data).split('\0');
    rest = messages.pop();
    for (const text of messages) hear(JSON.parse(text));
  });
  tell('Target.createTarget', { url: 'about:blank' });
});
setTimeout(() => { console.error('the page did not answer'); process.exit(1); }, (Number(seconds) + 60) * 1000);

// explain gives each failed fetch its reason: both lists are in the order of time.
function explain(out) {
  const failed = [];
  for (const [text, at] of Object.entries(out.at)) {
    if (!text.startsWith('TypeError')) continue;
    failed.push(...at);
    delete out.at[text];
    delete out.errors[text];
  }
  failed.sort((a, b) => a - b).forEach((at, i) => {
    const text = reasons[i] ?? 'unknown';
    out.errors[text] = (out.errors[text] ?? 0) + 1;
    (out.at[text] ??= []).push(at);
  });
}
