// node rate_limiter_flexible.mjs PORT SECONDS: 64 callers on 10,000 keys, everything allowed; prints checks a second.
import { createRequire } from 'node:module';
const require = createRequire(process.env.PEERS + '/');
const { RateLimiterRedis } = require('rate-limiter-flexible');
const Redis = require('ioredis');

const [port, seconds] = process.argv.slice(2).map(Number);
const client = new (Redis.default ?? Redis)(port, '127.0.0.1', { enableOfflineQueue: true });
const limiter = new RateLimiterRedis({ storeClient: client, points: 1_000_000, duration: 60, keyPrefix: 'rlf' });
let count = 0;
const end = Date.now() + seconds * 1000;
const caller = async () => {
  while (Date.now() < end) {
    await limiter.consume('user:' + Math.floor(Math.random() * 10_000));
    count++;
  }
};
await Promise.all(Array.from({ length: 64 }, caller));
console.log(count / seconds);
client.disconnect();
