// Sends POSTs over HTTP/2, some at a time on each of some sessions, for two seconds.
// A session that was told to close is replaced.
import http2 from 'node:http2';

const url = process.argv[2];
const until = Date.now() + 2000;

async function client() {
	let session;
	const connected = () => {
		if (!session || session.closed || session.destroyed) {
			session = http2.connect(url);
			session.on('error', () => {});
		}
		return session;
	};
	const post = () => new Promise((resolve) => {
		const stream = connected().request({ ':method': 'POST', ':path': '/' });
		stream.on('error', () => {});
		stream.on('close', resolve);
		stream.resume();
		stream.end('body');
	});
	const worker = async () => {
		while (Date.now() < until) {
			await post();
			await new Promise((resolve) => setTimeout(resolve, Math.random() * 5));
		}
	};
	await Promise.all(Array.from({ length: 8 }, worker));
	session.close();
}

await Promise.all(Array.from({ length: 8 }, client));
