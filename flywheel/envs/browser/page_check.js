// What `flywheel env page try` looks for in a page: form controls, things to drag, and sources of chance.
(() => {
  // Nodes below a root, in open shadow trees too, and the node that lies on top of one in its own tree.
  const below = (root, what) => [...root.querySelectorAll(what),
    ...[...root.querySelectorAll("*")].flatMap((host) => host.shadowRoot ? below(host.shadowRoot, what) : [])];
  const topOf = (node, x, y) => node.getRootNode().elementFromPoint(x, y);
  const covers = (top, node) => !top || !(node.contains(top) || top.contains(node));

  // Controls that can be operated: what one is, what it holds now, and the first of a kind.
  const skipped = new Set(["hidden", "submit", "button", "reset", "image"]);
  const kindOf = (node) => node.matches("select") ? (node.multiple || node.size > 1 ? "select (list)" : "select")
    : node.matches("textarea") ? "textarea" : node.matches("details") ? "details"
    : node.matches("input") ? `input of type ${node.type}` : "editable text";
  const all = () => below(document, "input, select, textarea, details, [contenteditable]").filter((node) =>
    !node.disabled && !node.readOnly && !skipped.has(node.type)
    && (node.isContentEditable || !node.matches("[contenteditable]"))
    && node.checkVisibility({ opacityProperty: true, visibilityProperty: true }));
  const heldBy = (node) => node.matches("details") ? node.open : node.matches("[type=checkbox], [type=radio]")
    ? node.checked : node.matches("select") ? [...node.options].map((one) => one.selected)
    : "value" in node ? node.value : node.textContent;
  const first = (kind) => all().find((node) => kindOf(node) === kind
    && !(node.type === "radio" && node.checked) && !(node.matches("select") && node.options.length < 2));

  const kinds = () => [...new Set(all().map(kindOf))].filter((kind) => first(kind));
  const place = (kind) => {
    const node = window.__tried__ = first(kind);
    if (!node) return null;
    node.scrollIntoView({ block: "center", inline: "center" });
    const box = (node.matches("details") && node.querySelector("summary") || node).getBoundingClientRect();
    const covered = covers(topOf(node, box.x + box.width / 2, box.y + box.height / 2), node);
    return { covered, held: heldBy(node), x: box.x / innerWidth, y: box.y / innerHeight,
      w: box.width / innerWidth, h: box.height / innerHeight };
  };
  const held = () => window.__tried__?.isConnected ? heldBy(window.__tried__) : null;

  // The middles of two visible things of each kind of drag: the first is dragged onto the second.
  const handles = (node) => /^(move|grab|all-scroll)$/.test(getComputedStyle(node).cursor)
    || node.matches(".ui-draggable, .ui-sortable > *, [class*=sortable i] > *, [class*=draggable i]");
  const ways = { "HTML5 drag and drop": (node) => node.getAttribute("draggable") === "true",
    "a pointer drag": (node) => node.getAttribute("draggable") !== "true" && handles(node) };
  const draggables = () => {
    const found = {};
    for (const node of below(document.body, "*")) {
      const box = node.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
      if (covers(topOf(node, x, y), node)) continue;
      for (const [way, takes] of Object.entries(ways))
        if (takes(node) && !(found[way] ??= []).some((one) => one.node.contains(node))) found[way].push({ node, x, y });
    }
    return Object.entries(found).map(([way, places]) =>
      [way, places.slice(0, 2).map(({ x, y }) => [x / innerWidth, y / innerHeight])]);
  };

  // Whether scripts of the document, and all that they loaded, name chance, where their text can be read.
  const namesChance = async () => {
    const loaded = performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => /\.m?js([?#]|$)/.test(name) && name.startsWith(location.origin));
    const texts = [...document.scripts].filter((script) => !script.src).map((script) => script.textContent);
    for (const name of loaded) texts.push(await fetch(name).then((answer) => answer.text(), () => ""));
    return /Math\s*\.\s*random|getRandomValues|randomUUID/.test(texts.join("\n"));
  };
  return { kinds, place, held, draggables, namesChance };
})()
