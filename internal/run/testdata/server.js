// A server that knows nothing of SIGTERM. With "cluster" it is two workers behind a primary.
const cluster = require('node:cluster');
const http = require('node:http');

const [port, mode] = process.argv.slice(2);
if (mode === 'cluster' && cluster.isPrimary) {
  cluster.fork();
  cluster.fork();
} else {
  http.createServer((req, res) => {
    req.resume().on('end', () => res.end('ok\n'));
  }).listen(port, '127.0.0.1');
}
