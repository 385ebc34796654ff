// Keeps the files of the site for readers without a network. Registered when a reader first runs a cell, or moves a slider. What Python
// and the lessons need is kept under the hash of its content and taken from there first; pages are taken from the network first.
const { name: CORE, parts: PARTS } = /* written by docs/live.py */ {"name": "", "parts": {}};
const PAGES = "tinyprop-pages";
const absolute = (files) => files.map((file) => new URL(file, self.location).href);
const addresses = new Set(absolute(Object.values(PARTS).flat()));
const isOld = (name) => name.startsWith("tinyprop-") && name !== CORE && name !== PAGES;

// a new edition keeps what the one before it kept
addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const before = (await caches.keys()).filter(isOld);
    for (const [part, files] of Object.entries(PARTS)) {
      const known = await Promise.all(before.flatMap((name) => absolute(files).map((file) => caches.match(file, { cacheName: name }))));
      if (known.some(Boolean)) await keep(part);
    }
    await skipWaiting();
  })());
});

addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) if (isOld(name)) await caches.delete(name);
    await clients.claim();
  })());
});

// a page tells which parts it needs, and what it has loaded itself
addEventListener("message", (event) => {
  const { parts, pages } = event.data;
  event.waitUntil((async () => {
    for (const part of parts) await keep(part);
    const wanted = pages.filter((address) => !addresses.has(address) && address.startsWith(self.registration.scope));
    const cache = await caches.open(PAGES);
    await Promise.allSettled(wanted.map((address) => cache.add(address)));
  })());
});

async function keep(part) {
  const cache = await caches.open(CORE);
  const known = await Promise.all(absolute(PARTS[part]).map((file) => cache.match(file)));
  await cache.addAll(absolute(PARTS[part]).filter((_, i) => !known[i]));
}

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(self.registration.scope)) return;
  event.respondWith(addresses.has(request.url) ? first(request) : fresh(request));
});

async function first(request) {
  return (await caches.match(request.url, { cacheName: CORE })) ?? fetch(request);
}

async function fresh(request) {
  const cache = await caches.open(PAGES);
  try {
    const answer = await fetch(request);
    if (answer.status === 200) await cache.put(request, answer.clone());
    return answer;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
}
