// What pages ask the server for, and when they ask again.
import { useEffect, useRef, useState } from "preact/hooks";

export type Row = Record<string, any>;

export class Refused extends Error {}

async function answered(response: Response): Promise<Response> {
  if (response.status === 401) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Refused(said.error ?? `the server answered ${response.status}`);
  }
  return response;
}

export async function get<T = any>(address: string, signal?: AbortSignal): Promise<T> {
  try {
    return await (await answered(await fetch(address, { signal }))).json();
  } catch (error) {
    throw told(error);
  }
}

export async function post(address: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "content-type": "application/json" };
  try {
    return await answered(await fetch(address, { method: "POST", body: JSON.stringify(body), headers, signal }));
  } catch (error) {
    throw told(error);
  }
}

function told(error: unknown): unknown {
  const away = error instanceof TypeError;
  return away ? new Refused("the server does not answer: is `flywheel ui` still running?") : error;
}

export interface Answer<T> {
  data?: T;
  error?: string;
  loading: boolean;
}

// The answer at an address; asked for again when `again` changes, and shown as it was until the new one is there.
export function useAnswer<T = any>(address: string | null, again: unknown = 0): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T> & { of?: string | null }>({ loading: true });
  useEffect(() => {
    if (address === null) return;
    const asking = new AbortController();
    setAnswer((before) => (before.of === address ? before : { loading: true, of: address }));
    get<T>(address, asking.signal).then(
      (data) => setAnswer({ data, loading: false, of: address }),
      (error) => {
        if (!asking.signal.aborted) setAnswer({ error: error.message, loading: false, of: address });
      },
    );
    return () => asking.abort();
  }, [address, again]);
  return answer.of === address || address === null ? answer : { loading: true };
}

const listeners = new Set<(standing: string) => void>();
let source: EventSource | undefined;
let standing = "";

function listen() {
  source = new EventSource("/api/changes");
  source.onmessage = (event) => {
    standing = event.data;
    for (const listener of listeners) listener(standing);
  };
}

// A name of what the store holds: another one as soon as a run has written something.
export function useStanding(): string {
  const [seen, see] = useState(standing);
  const first = useRef(true);
  useEffect(() => {
    // The first name that comes tells nothing new: the page has asked just now.
    const listener = (name: string) => {
      if (!first.current || seen) see(name);
      first.current = false;
    };
    listeners.add(listener);
    if (!source) listen();
    return () => void listeners.delete(listener);
  }, []);
  return seen;
}
