// Returns what it gets: a length of four bytes, and that many bytes.

import { createConnection } from "node:net";

const connection = createConnection(process.argv[2]);
let chunks = [];
let have = 0;
connection.on("data", (chunk) => {
  chunks.push(chunk);
  have += chunk.length;
  if (have < 4) return;
  if (chunks[0].length < 4) chunks = [Buffer.concat(chunks)];
  if (have < 4 + chunks[0].readUInt32BE()) return;
  connection.write(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks));
  chunks = [];
  have = 0;
});
