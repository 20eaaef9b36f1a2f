// Queries that people saved, with a link each.
import { useState } from "preact/hooks";
import { post, type Row } from "./api";
import { Failure, when } from "./parts";

interface Props {
  // The one that is open, if any; whether what is typed is another text by now.
  open?: Row;
  changed: boolean;
  sql: () => string;
  reviewer: string;
  setReviewer: (name: string) => void;
  // The name that is open now: "" after it was deleted.
  onSaved: (name: string) => void;
}

export function Saved({ open, changed, sql, reviewer, setReviewer, onSaved }: Props) {
  const [asking, ask] = useState<"delete" | "rename" | "save">();
  const [state, set] = useState<{ error?: string; told?: string }>({});
  const act = async (address: string, body: object, name: string, told: string) => {
    try {
      await post(address, body);
      ask(undefined);
      set({ told });
      onSaved(name);
    } catch (error) {
      set({ error: (error as Error).message });
    }
  };
  const own = (what: string) => `/api/queries/${encodeURIComponent(open!.name)}/${what}`;
  const save = (event: SubmitEvent) => {
    event.preventDefault();
    const form = Object.fromEntries(new FormData(event.currentTarget as HTMLFormElement)) as Record<string, string>;
    const name = form.name.trim();
    if (!reviewer) setReviewer(form.author.trim());
    act("/api/queries", { ...form, name, sql: sql(), author: reviewer || form.author }, name, `Saved as ${name}.`);
  };
  const rename = (event: SubmitEvent) => {
    event.preventDefault();
    const name = String(new FormData(event.currentTarget as HTMLFormElement).get("name")).trim();
    act(own("rename"), { name }, name, `It is ${name} now.`);
  };
  const replace = () => act("/api/queries", { name: open!.name, description: open!.description, sql: sql(), author: reviewer || open!.author, replace: true }, open!.name, "Saved as it is now.");
  return (
    <section class="keep" aria-label="Saved query">
      {open && (
        <p class="small">
          <strong>{open.name}</strong>
          {open.description && `: ${open.description}`}{" "}
          <span class="soft">
            {open.author && `${open.author}, ${when(open.at)} UTC`}
            {changed && "; what is typed is another query by now"}
          </span>
        </p>
      )}
      <div class="choices">
        {open && changed && (
          <button type="button" onClick={replace}>
            Save changes
          </button>
        )}
        <button type="button" aria-expanded={asking === "save"} onClick={() => ask(asking === "save" ? undefined : "save")}>
          Save {open ? "as another" : "this query"} …
        </button>
        {open && (
          <>
            <button type="button" aria-expanded={asking === "rename"} onClick={() => ask(asking === "rename" ? undefined : "rename")}>
              Rename …
            </button>
            <button type="button" aria-expanded={asking === "delete"} onClick={() => ask(asking === "delete" ? undefined : "delete")}>
              Delete …
            </button>
          </>
        )}
        <span class="small soft" role="status">
          {state.told}
        </span>
      </div>
      {asking === "save" && (
        <form class="choices" onSubmit={save}>
          <Field name="name" text="Name" most={40} title="Small letters, digits, dashes and underscores" />
          <Field name="description" text="What it asks" most={300} wide />
          {!reviewer && <Field name="author" text="Your name" most={60} />}
          <button class="main">Save</button>
        </form>
      )}
      {asking === "rename" && (
        <form class="choices" onSubmit={rename}>
          <Field name="name" text="New name" most={40} value={open!.name} title="Small letters, digits, dashes and underscores" />
          <button class="main">Rename</button>
        </form>
      )}
      {asking === "delete" && (
        <div class="choices" role="group" aria-label="Are you sure?">
          <strong>Delete {open!.name}?</strong>
          <button type="button" class="main" onClick={() => act(own("delete"), {}, "", `${open!.name} is deleted.`)}>
            Yes, delete
          </button>
          <button type="button" onClick={() => ask(undefined)}>
            No
          </button>
        </div>
      )}
      {state.error && <Failure error={state.error} />}
    </section>
  );
}

function Field({ name, text, most, value, title, wide }: { name: string; text: string; most: number; value?: string; title?: string; wide?: boolean }) {
  return (
    <label class={wide ? "push" : undefined}>
      {text} <input name={name} required={!wide} maxLength={most} defaultValue={value} title={title} autoCapitalize="none" ref={(field) => void (name === "name" && field && !field.dataset.seen && (field.focus(), (field.dataset.seen = "yes")))} />
    </label>
  );
}
