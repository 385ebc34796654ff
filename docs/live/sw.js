// Keeps the files of the site for readers without a network. Registered when a reader first runs a cell, or moves a slider. The files of
// PARTS have the hash of their content in their address, so what is kept of one never gets old: it is taken from here first. Pages are
// taken from the network first. An edition keeps the pages of its own, so that no page meets files that it does not know.
const { edition, parts: PARTS } = /* written by docs/editions.py */ {"edition": "", "parts": {}};
const OURS = `tinyprop ${new URL(".", self.location).pathname} `; // another copy of the site on this host has caches of its own
const FILES = `${OURS}files`;
const PAGES = `${OURS}pages ${edition}`;
const absolute = (files) => files.map((file) => new URL(file, self.location).href);
const addresses = new Set(absolute(Object.values(PARTS).flat()));
const isOld = (name) => name.startsWith("tinyprop-") || (name.startsWith(OURS) && name !== FILES && name !== PAGES);

// a new edition keeps what the one before it kept
addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const known = (await Promise.all((await caches.keys()).filter((name) => name === FILES || isOld(name)).map(addressesIn))).flat();
    for (const [part, files] of Object.entries(PARTS)) {
      const prefixes = absolute(files).map(unhashed);
      if (known.some((address) => prefixes.includes(unhashed(address)))) await keep(part);
    }
    await Promise.all(known.filter((address) => isPage(address)).map(renew));
    await skipWaiting();
  })());
});

addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) if (isOld(name)) await caches.delete(name);
    const files = await caches.open(FILES);
    for (const address of await addressesIn(FILES)) if (!addresses.has(address)) await files.delete(address);
    await clients.claim();
  })());
});

// a page tells which parts it needs, and what it has loaded itself
addEventListener("message", (event) => {
  const { parts, pages } = event.data;
  event.waitUntil((async () => {
    for (const part of parts) await keep(part);
    await Promise.allSettled(pages.filter((address) => isPage(address) && address.startsWith(self.registration.scope)).map(renew));
  })());
});

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(self.registration.scope)) return;
  event.respondWith(addresses.has(request.url) ? kept(request) : fresh(event));
});

const addressesIn = async (name) => (await (await caches.open(name)).keys()).map((request) => request.url);

/** An address up to the hash in it: ".../live/live-" of ".../live/live-0123456789abcdef/worker.js". */
const unhashed = (address) => address.replace(/-[0-9a-f]{16}\b.*$/, "-");
const isPage = (address) => unhashed(address) === address;

async function keep(part) {
  const cache = await caches.open(FILES);
  const known = new Set(await addressesIn(FILES));
  await cache.addAll(absolute(PARTS[part]).filter((address) => !known.has(address)));
}

/** Keeps a page as it is on the server now; the cache of the browser may have an older one. */
async function renew(address) {
  const answer = await fetch(address, { cache: "no-cache" });
  if (answer.status === 200) await (await caches.open(PAGES)).put(address, answer);
}

async function kept(request) {
  const answer = await caches.match(request.url, { cacheName: FILES });
  return answer ?? fetch(request);
}

async function fresh(event) {
  const { url, redirect } = event.request;
  try {
    const answer = await fetch(url, { cache: "no-cache", redirect });
    if (answer.status === 200) event.waitUntil(put(url, answer.clone()));
    return answer;
  } catch (error) {
    const cache = await caches.open(PAGES);
    const last = (await cache.match(url)) ?? (await cache.match(url, { ignoreSearch: true }));
    if (last) return last;
    throw error;
  }
}

async function put(address, answer) {
  try {
    await (await caches.open(PAGES)).put(address, answer);
  } catch {
    // there is no room for it: the reader has it all the same
  }
}
