// What the explorer reads of a page at rest. `about`: roles and names of `nodes`, from the accessibility tree.
function (about, ...nodes) {
  READING_PARTS
  const clean = (text) => (text ?? "").replace(/\s+/g, " ").trim();
  const one = (selector) => { try { return document.querySelectorAll(selector).length === 1; } catch { return false; } };
  const ids = new Map(), places = new Map();
  for (const node of document.querySelectorAll("[id]")) ids.set(node.id, (ids.get(node.id) ?? 0) + 1);
  const place = (node) => {
    if (!places.has(node)) places.set(node, findPlace(node));
    return places.get(node);
  };
  const findPlace = (node) => {
    if (node === document.body) return "body";
    const tag = node.localName;
    if (ids.get(node.id) === 1) return `#${CSS.escape(node.id)}`;
    for (const name of ["name", "aria-label", "data-id", "data-testid"]) {
      const given = node.getAttribute(name), selector = given && `${tag}[${name}=${JSON.stringify(given)}]`;
      if (selector && given.length < 80 && one(selector)) return selector;
    }
    const parent = node.parentElement;
    if (!parent) return tag;
    const same = [...parent.children].filter((other) => other.localName === tag);
    return `${place(parent)} > ${tag}${same.length > 1 ? `:nth-of-type(${same.indexOf(node) + 1})` : ""}`;
  };
  const shown = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true });

  // Where a control is pressed: its largest piece, or its label where the control itself is hidden behind that.
  const piece = (node) => [...node.getClientRects()].sort((a, b) => b.width * b.height - a.width * a.height)[0];
  const covered = (node, box) => {
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight) return false;
    const top = node.getRootNode().elementFromPoint(x, y);
    return !top || !(node.contains(top) || top.contains(node));
  };
  const target = (node) => {
    for (const other of [node, ...(node.labels ?? [])]) {
      const box = piece(other);
      if (box && box.width >= 4 && box.height >= 4 && !covered(other, box)) return box;
    }
    return null;
  };
  const scroller = (node) => {
    for (let at = node.parentElement; at && at !== document.body && at !== document.documentElement; at = at.parentElement)
      if (at.scrollHeight > at.clientHeight + 4 && /auto|scroll/.test(getComputedStyle(at).overflowY)) return at;
    return null;
  };

  const leaves = /cancel|close|reset|clear|back|dismiss|^[×✕x]$/i;
  const presses = "button, input[type=submit], input[type=button], input[type=image], [role=button]";
  const submitOf = (scope) => {
    const all = [...scope.querySelectorAll(presses)].filter((node) => shown(node) && !node.disabled);
    const named = (node) => clean(node.innerText || node.value || node.getAttribute("aria-label"));
    const sends = (node) => node.type === "submit" || node.type === "image";
    return all.find((node) => sends(node) && !leaves.test(named(node))) ??
      (scope.localName === "form" ? null : all.find((node) => named(node) && !leaves.test(named(node))));
  };
  const scopeOf = (node) => {
    for (const scope of [node.form, node.closest("[role=dialog], dialog")]) if (scope && submitOf(scope)) return scope;
    return null;
  };
  const heading = (node) => {
    const set = node.closest("fieldset")?.querySelector("legend");
    if (set) return clean(set.innerText);
    if (node.closest("th")) return "the table's headings";
    const first = clean(node.parentElement?.innerText).split(clean(node.innerText) || "\0")[0].trim();
    if (/^[^.!?]{2,40}:$/.test(first)) return first.slice(0, -1);
    for (let at = node; at && at !== document.body; at = at.parentElement)
      for (let before = at.previousElementSibling; before; before = before.previousElementSibling)
        if (/^h[1-6]$|^legend$|^label$/.test(before.localName) && shown(before)) return clean(before.innerText).slice(0, 60);
    return "";
  };
  const lead = (node) => {  // the words right before a field that has no label
    for (let at = node, up = 0; at && up < 3; at = at.parentElement, up++)
      for (let before = at.previousSibling; before; before = before.previousSibling) {
        const text = clean(before.nodeType !== 1 ? before.data : before.checkVisibility() ? before.innerText : "");
        if (text) return text.length <= 40 && /\w/.test(text) ? text.replace(/[:*\s]+$/, "") : "";
      }
    return "";
  };
  const signature = (node) => {
    const parts = [];
    for (let at = node; at && at !== document.body && parts.length < 5; at = at.parentElement)
      parts.push(at.localName + (at.id && !/\d/.test(at.id) ? `#${at.id}` : ""));
    return parts.join("<");
  };
  const within = (url) => url.startsWith(`${location.origin}/`) ? url.slice(location.origin.length) : url;
  const describe = (node, role, name) => {
    const box = target(node), hidden = !box || !shown(node.labels?.[0] ?? node);
    if (hidden || node.readOnly || node.closest("[inert]")) return null;
    const off = node.matches(":disabled") || Boolean(node.closest("[aria-disabled=true], .ui-state-disabled"));
    const scope = scopeOf(node), inner = scroller(node), view = inner && inner.getBoundingClientRect();
    const field = /^(input|select|textarea)$/.test(node.localName) || role === "combobox";
    const label = clean(name) || clean(node.getAttribute("placeholder")) || clean(node.getAttribute("title"))
      || (field && (lead(node) || clean(node.getAttribute("name")).replace(/[_-]+/g, " ").trim())) || "";
    return {
      role, name: label.slice(0, 120), named: Boolean(clean(name)), place: place(node), tag: node.localName,
      type: node.localName === "input" ? node.type : "", state: stateOf(node), signature: signature(node),
      value: typeof node.value === "string" ? node.value : "",
      options: node.localName === "select" ? [...node.options].map((each) => clean(each.text)) : [],
      chosen: node.localName === "select" ? node.selectedIndex : -1,
      multiple: node.localName === "select" && (node.multiple || node.size > 1),
      href: within(node.closest("a")?.href ?? ""), scope: scope ? place(scope) : "",
      submits: Boolean(scope && submitOf(scope) === node), required: Boolean(node.required),
      low: node.min ?? node.getAttribute("aria-valuemin") ?? "", high: node.max ?? node.getAttribute("aria-valuemax") ?? "",
      suggests: node.matches("[aria-autocomplete], [list], [role=combobox], [autocomplete=off]"),
      heading: heading(node), off,
      box: [box.x, box.y, box.width, box.height],
      inside: view ? [view.x, view.y, view.width, view.height] : [],
    };
  };

  const controls = [], known = new Set(nodes);
  nodes.forEach((node, i) => {
    if (node.nodeType !== 1 || !node.isConnected) return;
    if (node.localName === "option" && !(node.parentElement?.size > 1 || node.parentElement?.multiple)) return;
    const found = describe(node, ...about[i]);
    if (found) controls.push(found);
  });
  // What can be clicked though the accessibility tree does not say so.
  const nested = (node) => nodes.some((other) => other.contains?.(node) || node.contains?.(other));
  let extra = 0;
  for (const node of document.body?.querySelectorAll("*") ?? []) {
    if (extra >= 40) break;
    if (known.has(node) || !(node.hasAttribute("onclick") || getComputedStyle(node).cursor === "pointer")) continue;
    if (!node.hasAttribute("onclick") && getComputedStyle(node.parentElement).cursor === "pointer") continue;
    const beside = clean(node.parentElement.innerText);
    const name = clean(node.innerText || node.getAttribute("title") || node.getAttribute("aria-label")
      || node.querySelector("title")?.textContent) || (beside && beside.length < 40 ? `icon at ${beside}` : "");
    if (node.localName === "label" || !shown(node) || !name || name.length > 80 || nested(node)) continue;
    const found = describe(node, "clickable", name);
    if (found) { controls.push(found); extra += 1; }
  }
  // Things to choose by a click that nothing announces, such as jQuery UI's selectable items.
  for (const node of document.body?.querySelectorAll(".ui-selectee") ?? []) {
    const found = extra < 40 && !nested(node) && describe(node, "clickable", node.innerText);
    if (found) { controls.push(found); extra += 1; }
  }

  // Visible text, by the nearest element with an id that no library has made up.
  const madeUp = /^(ui-id-|radix-|headlessui-|:r|mui-)/;
  const regions = {}, owners = new Map(), seen = new Map();
  const owner = (node) => {
    if (!node || node === document.body) return "body";
    if (!owners.has(node)) owners.set(node, node.id.length < 60 && !madeUp.test(node.id) && ids.get(node.id) === 1
      ? `#${CSS.escape(node.id)}` : owner(node.parentElement));
    return owners.get(node);
  };
  const walker = document.createTreeWalker(document.body ?? document, NodeFilter.SHOW_TEXT);
  for (let count = 0; count < 6000 && walker.nextNode(); count++) {
    const text = clean(walker.currentNode.data), parent = walker.currentNode.parentElement;
    if (!text || !parent || /^(script|style|noscript|option|textarea)$/.test(parent.localName)) continue;
    if (!seen.has(parent)) seen.set(parent, shown(parent));
    if (seen.get(parent)) (regions[owner(parent)] ??= []).push(text);
  }
  const tables = {};
  for (const table of [...document.querySelectorAll("table")].slice(0, 10)) {
    const rows = [...table.rows].slice(0, 20), heads = [...(rows[0]?.cells ?? [])].map((cell) => clean(cell.innerText));
    heads.forEach((head, i) => {
      const name = head.split(" ")[0].toLowerCase();
      if (name) tables[name] ??= rows.slice(1).map((row) => clean(row.cells[i]?.innerText)).filter(Boolean);
    });
  }
  const store = (open) => { try { return Object.fromEntries(Object.entries(open())); } catch { return {}; } };
  const at = (node) => [(node.x + node.width / 2) / innerWidth, (node.y + node.height / 2) / innerHeight];
  const moves = [];  // what can be dragged, and where to: onto a thing that takes it, onto its last neighbour, or aside
  const drops = [...document.querySelectorAll(".ui-droppable, [ondrop], [data-droppable]")].filter(shown);
  for (const node of document.body?.querySelectorAll(
    "[draggable=true], .ui-draggable, .ui-sortable > *, [class*=sortable i] > *, .ui-resizable-se, [class*=slider-handle]") ?? []) {
    if (moves.length >= 8 || !shown(node) || covered(node, node.getBoundingClientRect())) continue;
    const box = node.getBoundingClientRect(), from = [box.x + box.width / 2, box.y + Math.min(box.height / 2, 12)];
    const drop = drops.find((other) => !other.contains(node) && !node.contains(other));
    const others = [...node.parentElement.children].filter((other) => other !== node && shown(other)
      && other.localName === node.localName && (other.className === node.className));
    const onto = drop ?? (node.matches(".ui-draggable, .ui-resizable-se") ? null : others.at(-1));
    const end = onto ? at(onto.getBoundingClientRect()) : [(from[0] + 80) / innerWidth, (from[1] + 60) / innerHeight];
    const sizes = node.matches(".ui-resizable-se"), thing = sizes ? node.parentElement : node;
    const label = document.getElementById(thing.getAttribute("aria-labelledby"))?.innerText
      || thing.getAttribute("aria-label") || thing.innerText || (node.matches("[class*=slider]") ? "slider handle" : "");
    const name = clean(label).replace(/^(.{20,39}\S)\s.*$/, "$1").slice(0, 60);
    const start = [from[0] / innerWidth, from[1] / innerHeight];
    if ([...start, ...end].every((value) => value >= 0 && value < 1) && name)
      moves.push({ name, place: place(node), onto: onto ? clean(onto.innerText).slice(0, 60) : "", start, end, sizes, signature: signature(node),
        spot: spotOf(sizes ? node.parentElement : node), moved: place(sizes ? node.parentElement : node) });
  }
  return {
    url: location.href, address: address(), title: clean(document.title), heading: clean(document.querySelector("h1, h2")?.innerText).slice(0, 120),
    controls, regions: Object.fromEntries(Object.entries(regions).map(([key, texts]) => [key, texts.join(" ")])),
    tables, local: store(() => localStorage), session: store(() => sessionStorage), moves, modified: modified(),
    password: Boolean([...document.querySelectorAll("input[type=password]")].filter(shown).length),
    frames: document.querySelectorAll("iframe, frame").length, size: [innerWidth, innerHeight],
    top: scrollY, bottom: document.documentElement.scrollHeight - innerHeight - scrollY,
  };
}
