// Keeps the page for readers without a network, by the service worker of the site: from the first time that a reader does something.
let asked = false;

export async function keepForOffline() {
  if (asked) return;
  asked = true;
  try {
    const registration = await navigator.serviceWorker?.register(new URL("../sw.js", import.meta.url));
    if (!registration) return;
    const { active } = await navigator.serviceWorker.ready;
    const { modules, wheel, page } = await (await fetch("files.json")).json();
    const pages = [location.pathname, ...page, ...modules, wheel].map((name) => new URL(name, location.href).href);
    active.postMessage({ parts: ["python"], pages });
  } catch {
    // an old browser, or a page from a file: then a network is needed
  }
}
