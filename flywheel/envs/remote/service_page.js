// Runs ahead of a service's own scripts. Its page is of nobody (`services.py`), so that a browser refuses it storage and
// cookies, and many a script falls over that. Here it gets some, which last as long as the page.
(() => {
  const storage = () => {
    const kept = new Map();
    const own = {
      get length() {
        return kept.size;
      },
      key: (at) => [...kept.keys()][at] ?? null,
      getItem: (name) => kept.get(String(name)) ?? null,
      setItem: (name, value) => void kept.set(String(name), String(value)),
      removeItem: (name) => void kept.delete(String(name)),
      clear: () => kept.clear(),
    };
    return new Proxy(own, {
      get: (_, name) => (name in own ? own[name] : kept.get(name)),
      set: (_, name, value) => (own.setItem(name, value), true),
      has: (_, name) => name in own || kept.has(name),
      deleteProperty: (_, name) => (kept.delete(name), true),
      ownKeys: () => [...kept.keys()],
      getOwnPropertyDescriptor: (_, name) =>
        kept.has(name) ? { value: kept.get(name), enumerable: true, configurable: true, writable: true } : undefined,
    });
  };
  for (const name of ["localStorage", "sessionStorage"]) {
    Object.defineProperty(window, name, { value: storage(), configurable: true });
  }
  const cookies = new Map();
  Object.defineProperty(document, "cookie", {
    get: () => [...cookies].map(([name, value]) => `${name}=${value}`).join("; "),
    set(told) {
      const [name, ...value] = String(told).split(";")[0].split("=");
      cookies.set(name.trim(), value.join("=").trim());
    },
    configurable: true,
  });
})();
