// Who reviews: asked once, kept in this browser.
import { useState } from "preact/hooks";

const KEY = "flywheel-reviewer";
const ALLOWED = "[A-Za-z0-9][A-Za-z0-9._\\-]{0,39}";

export function useName(): [string, (name: string) => void] {
  const [name, set] = useState(() => localStorage.getItem(KEY) ?? "");
  return [name, (typed: string) => (localStorage.setItem(KEY, typed), set(typed))];
}

export function Name({ name, setName }: { name: string; setName: (name: string) => void }) {
  if (name) {
    return (
      <span class="soft">
        You are <strong>{name}</strong>{" "}
        <button type="button" class="quiet" onClick={() => setName("")}>
          Change<span class="heard"> your name</span>
        </button>
      </span>
    );
  }
  return (
    <form
      class="card who"
      onSubmit={(event) => {
        event.preventDefault();
        setName(String(new FormData(event.currentTarget).get("name")).trim().toLowerCase());
      }}
    >
      <h2>Who are you?</h2>
      <p class="soft">
        Your name stands beside what you say, and this browser keeps it. All who log in share one secret, so a name says who reviewed, and proves nothing: take your own, and always the same.
      </p>
      <label for="name">Name</label>
      <input id="name" name="name" required pattern={ALLOWED} maxLength={40} autoComplete="nickname" autoCapitalize="none" title="Letters from a to z, digits, dots, dashes and underscores; a letter or digit first" />
      <button class="main">Begin</button>
    </form>
  );
}
