// A server on the socket that it inherits. At SIGTERM it ends its requests.
const http = require('node:http');

const server = http.createServer((req, res) => {
  req.resume().on('end', () => res.end('ok\n'));
});
server.listen({ fd: 3 });
process.on('SIGTERM', () => server.close());
