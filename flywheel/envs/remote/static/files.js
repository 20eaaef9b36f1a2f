// Files of a session's home: a list of a folder, and a text that can be written once the session is taken over.
import { pathOf } from "/watch/static/socket.js";

export function files(place, session, hear) {
  const list = document.createElement("ul");
  const where = document.createElement("p");
  const text = document.createElement("textarea");
  const save = document.createElement("button");
  const left = document.createElement("div");
  const right = document.createElement("div");
  const bar = document.createElement("div");
  const name = document.createElement("b");
  left.append(where, list);
  bar.append(name, save);
  right.append(bar, text);
  text.readOnly = true;
  text.spellcheck = false;
  text.setAttribute("aria-label", "The file's text");
  save.textContent = "Save";
  save.disabled = true;
  place.replaceChildren(left, right);

  let folder = "";
  let opened = null; // its path and digest
  let taken = false;

  const asked = async (what, path, more = "", options = {}) => {
    const query = `path=${encodeURIComponent(path)}${more}`;
    const answer = await fetch(`${pathOf(session, what)}?${query}`, options);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  const told = async (work) => {
    hear({ note: "" });
    try {
      await work();
    } catch (error) {
      hear({ note: error.message });
    }
  };
  const allow = () => {
    text.readOnly = !(taken && opened?.digest);
    save.disabled = text.readOnly || text.value === opened.text;
    text.placeholder = opened ? "" : "Choose a file.";
  };
  const goTo = (path) =>
    told(async () => {
      const { entries, more } = await asked("folder", path || ".");
      folder = path;
      where.textContent = `~/${path}`;
      const up = path ? [{ name: "..", kind: "folder" }] : [];
      list.replaceChildren(...[...up, ...entries].map(line));
      if (more) list.append(Object.assign(document.createElement("li"), { textContent: `and ${more} more` }));
    });
  const show = (path) =>
    told(async () => {
      const { text: content, digest, why } = await asked("file", path);
      opened = { path, digest, text: content };
      name.textContent = path;
      text.value = content;
      allow();
      if (why || !taken) hear({ note: why || "Take over to write in it." });
    });
  const line = (entry) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    const path = [folder, entry.name].filter(Boolean).join("/");
    const size = document.createElement("small");
    button.textContent = entry.kind === "folder" ? `${entry.name}/` : entry.name;
    size.textContent = entry.kind === "file" ? `${entry.bytes} B` : entry.kind === "folder" ? "" : entry.kind;
    button.disabled = !["file", "folder", "link"].includes(entry.kind);
    button.addEventListener("click", () => {
      if (entry.name === "..") goTo(folder.split("/").slice(0, -1).join("/"));
      else if (entry.kind === "folder") goTo(path);
      else show(path);
    });
    item.append(button, size);
    return item;
  };
  text.addEventListener("input", allow);
  save.addEventListener("click", () =>
    told(async () => {
      const content = text.value;
      const more = `&digest=${opened.digest}`;
      const { digest } = await asked("file", opened.path, more, { method: "PUT", body: content });
      opened = { ...opened, digest, text: content };
      allow();
      await goTo(folder); // its size
      hear({ note: "Saved." });
    }),
  );
  allow();
  goTo("");
  return {
    take(on) {
      taken = on;
      allow();
    },
    close() {},
  };
}
