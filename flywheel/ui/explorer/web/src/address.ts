// The address of a page is its state: whoever has it sees the same.
import { useEffect, useState } from "preact/hooks";

const moved = new Set<() => void>();
addEventListener("popstate", () => moved.forEach((tell) => tell()));

export function go(address: string, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  moved.forEach((tell) => tell());
}

export function useAddress(): URL {
  const [url, set] = useState(() => new URL(location.href));
  useEffect(() => {
    const tell = () => set(new URL(location.href));
    moved.add(tell);
    return () => void moved.delete(tell);
  }, []);
  return url;
}

// The address of this page with other values: null takes one out.
export function withValues(url: URL, values: Record<string, string | string[] | null>): string {
  const query = new URLSearchParams(url.search);
  for (const [name, value] of Object.entries(values)) {
    query.delete(name);
    for (const one of value === null || value === "" ? [] : [value].flat()) query.append(name, one);
  }
  const text = query.toString();
  return url.pathname + (text && `?${text}`);
}

// Links within the explorer do not load the page anew; with a modifier key, or another button, they are the browser's.
export function followLinks() {
  addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a[href]") as HTMLAnchorElement | null;
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
    const to = new URL(link.href);
    if (to.origin !== location.origin || link.getAttribute("href")!.startsWith("#")) return;
    event.preventDefault();
    go(to.pathname + to.search);
    scrollTo(0, 0);
  });
}
