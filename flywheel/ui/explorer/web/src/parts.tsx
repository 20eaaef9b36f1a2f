// Small parts that pages share.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

export const label = (iteration: number) => String(iteration).padStart(3, "0");
export const count = (number: number) => number.toLocaleString("en");
export const share = (value: number | null | undefined) => (value == null ? "–" : `${Math.round(100 * value)}%`);
export const several = (n: number, one: string, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function short(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(+value.toPrecision(4));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export const when = (time: string | null) => (time ? time.slice(0, 19).replace("T", " ") : "–");

export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      Loading {what} …
    </p>
  );
}

export function Failure({ error }: { error: string }) {
  return (
    <div class="failure" role="alert">
      <strong>That did not work.</strong> <span>{error}</span>
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

const VERDICTS = new Map<boolean | null, [string, string]>([
  [true, ["V = 1", "good"]],
  [false, ["V = 0", "bad"]],
  [null, ["no V", "other"]],
]);

export function Verdict({ success }: { success: boolean | null }) {
  const [text, tone] = VERDICTS.get(success ?? null)!;
  return <span class={`pill ${tone}`}>{text}</span>;
}

export function Store({ name }: { name: string | null }) {
  if (!name) return null;
  return <span class={`pill toned tone-${name}`}>{({ sft: "SFT", ct: "CT" } as Record<string, string>)[name] ?? name}</span>;
}

export function CopyLink() {
  const [copied, copy] = useState(false);
  const click = () =>
    navigator.clipboard.writeText(location.href).then(
      () => copy(true),
      () => prompt("The address of this page", location.href),
    );
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => copy(false), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <button type="button" class="quiet" onClick={click}>
      {copied ? "Copied" : "Copy link"}
    </button>
  );
}

// Light or dark, as the reader's system is.
export function useDark(): boolean {
  const query = matchMedia("(prefers-color-scheme: dark)");
  return useQuery(query);
}

// most: width in pixels.
export function useNarrow(most = 640): boolean {
  return useQuery(matchMedia(`(max-width: ${most}px)`));
}

function useQuery(query: MediaQueryList): boolean {
  const [matches, set] = useState(query.matches);
  useEffect(() => {
    const tell = () => set(query.matches);
    query.addEventListener("change", tell);
    return () => query.removeEventListener("change", tell);
  }, [query.media]);
  return matches;
}
