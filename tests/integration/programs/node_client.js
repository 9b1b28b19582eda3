// SPDX-License-Identifier: MIT
// node_client.js PORT DIRECTORY: asks an HTTP server for /buffer/NAME of each file of the directory, eight at a time over kept
// connections, posts each to /echo, and compares; prints what it moved as JSON. It knows nothing of zc.
'use strict';
const fs = require('fs');
const http = require('http');
const path = require('path');

const [port, directory] = [Number(process.argv[2]), process.argv[3]];
const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
const moved = { sent: 0, received: 0, verified: 0 };

function ask(method, url, body, expected) {
	return new Promise((resolve, reject) => {
		const request = http.request({ host: process.env.APPS_ADDRESS || '127.0.0.1', port, path: url, method, agent }, (response) => {
			const parts = [];
			response.on('data', (part) => parts.push(part));
			response.on('error', reject);
			response.on('end', () => {
				const got = Buffer.concat(parts);
				if (response.statusCode !== 200 || !got.equals(expected))
					return reject(new Error(`${method} ${url}: ${response.statusCode}, ${got.length} bytes`));
				moved.sent += body ? body.length : 0;
				moved.received += got.length;
				moved.verified++;
				resolve();
			});
		});
		request.on('error', reject);
		request.end(body);
	});
}

const asked = [];
for (const name of fs.readdirSync(directory)) {
	const content = fs.readFileSync(path.join(directory, name));
	asked.push(ask('GET', '/buffer/' + name, null, content), ask('POST', '/echo', content, content));
}
Promise.all(asked).then(() => {
	agent.destroy();
	process.stdout.write(JSON.stringify(moved));
}, (error) => {
	console.error(error);
	process.exit(1);
});
