// Serves dynalite on a socket that is open already, `server.js <file descriptor>`, or on a port of
// 127.0.0.1, `server.js --port <port>`.
const dynalite = require('dynalite')

const [first, second] = process.argv.slice(2)
const place = first === '--port' ? { host: '127.0.0.1', port: Number(second) } : { fd: Number(first) }

// dynalite throws where a client goes away in the middle of its request, which tests do.
process.on('uncaughtException', (error) => {
  if (error.code !== 'ECONNRESET') throw error
})

dynalite({ createTableMs: 0, deleteTableMs: 0, updateTableMs: 0 }).listen(place)
