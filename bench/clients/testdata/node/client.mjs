// usage: node client.mjs CLIENT URL WORKERS SECONDS PAUSE_MS
import http from 'node:http';
import https from 'node:https';
import http2 from 'node:http2';
import { readFileSync } from 'node:fs';
import { load } from './load.mjs';

const [kind, url, workers, seconds, pause] = process.argv.slice(2);
const ca = process.env.NODE_EXTRA_CA_CERTS && readFileSync(process.env.NODE_EXTRA_CA_CERTS);
const body = 'x'.repeat(100);

function check(status) {
  if (status !== 200) throw new Error(`status ${status}`);
}

const clients = {
  // The global fetch of this Node.
  async fetch() {
    return fetching(fetch);
  },
  // node:http with its agent, which keeps connections.
  async agent() {
    const mod = url.startsWith('https:') ? https : http;
    const agent = new mod.Agent({ keepAlive: true });
    return (post) => new Promise((resolve, reject) => {
      const req = mod.request(url, { agent, method: post ? 'POST' : 'GET' }, (res) => {
        res.on('error', reject);
        res.on('end', () => (res.statusCode === 200 ? resolve() : reject(new Error(`status ${res.statusCode}`))));
        res.resume();
      });
      req.on('error', reject);
      req.end(post ? body : undefined);
    });
  },
  // One session of node:http2, replaced when it is closed.
  async http2() {
    let session;
    const connected = () => {
      if (!session || session.closed || session.destroyed) {
        session = http2.connect(url, { ca });
        session.on('error', () => {}); // its streams say it too
      }
      return session;
    };
    return (post) => new Promise((resolve, reject) => {
      const req = connected().request({ ':path': '/', ':method': post ? 'POST' : 'GET' });
      let status;
      let ended = false;
      req.on('response', (headers) => { status = headers[':status']; });
      req.on('error', reject);
      req.on('end', () => { ended = true; });
      req.on('close', () => {
        if (status === 200 && ended && req.rstCode === 0) resolve();
        else reject(new Error(`closed with status ${status}, RST_STREAM ${req.rstCode}`));
      });
      req.resume();
      req.end(post ? body : undefined);
    });
  },
  'undici7-request': () => undici('undici7', 'request', { allowH2: true }),
  'undici7-fetch': () => undici('undici7', 'fetch', { allowH2: true }),
  'undici7-h1': () => undici('undici7', 'request', {}),
  'undici8-request': () => undici('undici8', 'request', {}),
  'undici8-fetch': () => undici('undici8', 'fetch', {}),
  // @grpc/grpc-js, one channel.
  async grpc() {
    const { default: grpc } = await import('@grpc/grpc-js');
    const { host } = new URL(url);
    const credentials = url.startsWith('https:') ? grpc.credentials.createSsl(ca) : grpc.credentials.createInsecure();
    const client = new grpc.Client(host, credentials);
    const same = (b) => b;
    return () => new Promise((resolve, reject) => {
      client.makeUnaryRequest('/bench.Echo/Call', same, same, Buffer.alloc(0), (err) => (err ? reject(err) : resolve()));
    });
  },
};

function fetching(fetch, more) {
  return async (post) => {
    const res = await fetch(url, { ...more, ...(post ? { method: 'POST', body } : {}) });
    await res.text();
    check(res.status);
  };
}

async function undici(version, verb, options) {
  const { Agent, request, fetch } = await import(version);
  const dispatcher = new Agent(options);
  if (verb === 'fetch') return fetching(fetch, { dispatcher });
  return async (post) => {
    const res = await request(url, { dispatcher, ...(post ? { method: 'POST', body } : {}) });
    await res.body.text();
    check(res.statusCode);
  };
}

await load({
  send: await clients[kind](),
  workers: Number(workers),
  seconds: Number(seconds),
  pause: Number(pause),
  note: `Node ${process.versions.node}`,
});
