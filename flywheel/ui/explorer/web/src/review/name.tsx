// Who reviews: asked once, kept in this browser.
import { useState } from "preact/hooks";

const KEY = "flywheel-reviewer";
// As the server reads a name (`labels.py`), whatever the script, with blanks.
const ALLOWED = new RegExp(document.body.dataset.reviewer!, "u");
const WANTED = "Up to 60 letters, digits, blanks, dots, dashes, underscores and apostrophes; a letter or digit first";

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
        setName(String(new FormData(event.currentTarget).get("name")).trim().replace(/ +/g, " ").toLowerCase());
      }}
    >
      <h2>Who are you?</h2>
      <p class="soft">
        Your name stands beside what you say, and this browser keeps it. All who log in share one secret, so a name says who reviewed, and proves nothing: take your own, and always the same.
      </p>
      <label for="name">Name</label>
      <input
        {...{ id: "name", name: "name", required: true, maxLength: 60, autoComplete: "nickname", autoCapitalize: "none", title: WANTED }}
        onInput={({ currentTarget: field }) => field.setCustomValidity(!field.value || ALLOWED.test(field.value) ? "" : WANTED)}
      />
      <button class="main">Begin</button>
    </form>
  );
}
