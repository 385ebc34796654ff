// Keeps a page for readers without a network, by the service worker of the site: from the first time that a reader does something.
let asked = false;

/** Keeps these parts of what sw.js knows, and what this page has loaded. */
export async function keepForOffline(parts) {
  if (asked) return;
  asked = true;
  try {
    const registration = await navigator.serviceWorker?.register(new URL("../../sw.js", import.meta.url));
    if (!registration) return;
    const { active } = await navigator.serviceWorker.ready;
    const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
    active.postMessage({ parts, pages: [location.href.split("#")[0], ...loaded] });
  } catch {
    // an old browser, or a page from a file: then a network is needed
  }
}
