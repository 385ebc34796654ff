// Keeps the files of the site for readers without a network. Registered when a reader first runs a cell. What Python needs is kept
// under the hash of its content and taken from there first; pages are taken from the network first.
const { name: CORE, files: FILES } = /* written by docs/live.py */ {"name": "", "files": []};
const PAGES = "tinyprop-pages";
const addresses = new Set(FILES.map((file) => new URL(file, self.location).href));

addEventListener("install", (event) => {
  event.waitUntil(caches.open(CORE).then((cache) => cache.addAll([...addresses])).then(() => skipWaiting()));
});

addEventListener("activate", (event) => {
  const old = (name) => name.startsWith("tinyprop-") && name !== CORE && name !== PAGES;
  event.waitUntil((async () => {
    for (const name of await caches.keys()) if (old(name)) await caches.delete(name);
    await clients.claim();
  })());
});

// the page that registers this worker tells what it has loaded before
addEventListener("message", ({ data }) => {
  const wanted = data.filter((address) => !addresses.has(address) && address.startsWith(self.registration.scope));
  caches.open(PAGES).then((cache) => Promise.allSettled(wanted.map((address) => cache.add(address))));
});

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
