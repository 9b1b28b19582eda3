// SPDX-License-Identifier: MIT
// node_server.js PORT DIRECTORY: GET /buffer/SIZE answers from memory, /stream/SIZE from a file by a stream, POST /echo sends back
// what comes, and GET /relay/SIZE is fetched from this server itself. It knows nothing of zc.
'use strict';
const fs = require('fs');
const http = require('http');
const path = require('path');

const [port, directory] = [Number(process.argv[2]), process.argv[3]];
const address = process.env.APPS_ADDRESS || '127.0.0.1';

function answer(request, response) {
	const [, how, size] = request.url.split('/');
	const file = path.join(directory, path.basename(size || '0'));

	if (request.method === 'POST')
		return request.pipe(response);
	if (how === 'relay')
		return http.get({ host: address, port, path: '/stream/' + size }, (inner) => {
			response.writeHead(200, { 'Content-Length': inner.headers['content-length'] });
			inner.pipe(response);
		});
	response.writeHead(200, { 'Content-Length': fs.statSync(file).size });
	if (how === 'buffer')
		return response.end(fs.readFileSync(file));
	fs.createReadStream(file).pipe(response);
}

http.createServer({ keepAliveTimeout: 60000 }, answer).listen(port, address);
