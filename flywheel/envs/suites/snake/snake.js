"use strict";
// Snake puzzle: one step a key press; a step that something blocks is none. `rules.py` has the same rules.

const { cols, rows, walls, doors, keys, apples, exit, snake } = config.params;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const on = (places, [x, y]) => places.findIndex((place) => place[0] === x && place[1] === y);
const hungry = (state) => state.eaten.length < apples.length;
const shut = (state, cell) => doors.some((door, i) => !state.taken.includes(i) && on([door], cell) === 0);

/** The cell that the head would go to, or null where something is in the way. */
function ahead(state, [dx, dy]) {
  const cell = [state.snake[0][0] + dx, state.snake[0][1] + dy];
  const [x, y] = cell;
  if (x < 0 || y < 0 || x >= cols || y >= rows || on(walls, cell) >= 0 || shut(state, cell)) return null;
  if (on(state.snake.slice(0, -1), cell) >= 0) return null;
  return on([exit], cell) === 0 && hungry(state) ? null : cell;
}

function step(direction) {
  const cell = ahead(game.state, direction);
  if (!cell) return;
  game.move((state) => {
    const apple = on(apples, cell);
    const grows = apple >= 0 && !state.eaten.includes(apple);
    const key = on(keys, cell);
    state.snake = [cell, ...(grows ? state.snake : state.snake.slice(0, -1))];
    if (grows) state.eaten.push(apple);
    if (key >= 0 && !state.taken.includes(key)) state.taken.push(key);
  });
}

const DOOR_COLOURS = ["blue", "purple", "orange"];

function drawBoard(state) {
  for (let y = 0; y < rows; y += 1) {
    for (let x = 0; x < cols; x += 1) if ((x + y) % 2) rect(x, y, 1, 1, { fill: "#d8e4c8" });
  }
  for (const [x, y] of walls) {
    rect(x, y, 1, 1, { fill: "#59627a" });
    rect(x + 0.06, y + 0.06, 0.88, 0.4, { fill: "#7a849e", r: 0.1 });
  }
  const open = !hungry(state);
  rect(exit[0] + 0.05, exit[1] + 0.05, 0.9, 0.9, { fill: open ? "green" : "gray", r: 0.12, name: "exit" });
  symbol("house", exit[0] + 0.5, exit[1] + 0.5, 0.7);
  doors.forEach(([x, y], i) => {
    if (state.taken.includes(i)) return;
    rect(x, y, 1, 1, { fill: DOOR_COLOURS[i], stroke: "#1b1f27", name: `door ${DOOR_COLOURS[i]}` });
    disc(x + 0.5, y + 0.42, 0.13, { fill: "white" });
    rect(x + 0.44, y + 0.45, 0.12, 0.3, { fill: "white" });
  });
  keys.forEach(([x, y], i) => {
    if (!state.taken.includes(i)) {
      symbol("key", x + 0.5, y + 0.5, 1.05, { fill: DOOR_COLOURS[i], name: `key ${DOOR_COLOURS[i]}` });
    }
  });
  apples.forEach(([x, y], i) => {
    if (state.eaten.includes(i)) return;
    disc(x + 0.5, y + 0.56, 0.32, { fill: "red", name: `apple ${i}` });
    line([[x + 0.5, y + 0.3], [x + 0.58, y + 0.1]], { stroke: "#5a3a1b", width: 0.08 });
    disc(x + 0.4, y + 0.46, 0.07, { fill: "#ffb3ae" });
  });
  drawSnake(state.snake.map(([x, y]) => [x + 0.5, y + 0.5]));
}

function drawSnake(body) {
  const all = body.length > 1 ? body : [body[0], body[0]];
  line(all, { stroke: "#176b2a", width: 0.7 });
  line(all, { stroke: "green", width: 0.56 });
  const [x, y] = body[0];
  disc(x, y, 0.4, { fill: "#176b2a", name: "head" });
  disc(x, y, 0.34, { fill: "green" });
  const [dx, dy] = body.length > 1 ? [x - body[1][0], y - body[1][1]] : [1, 0];
  for (const side of [-1, 1]) {
    const [ex, ey] = [x + 0.1 * dx + 0.16 * side * dy, y + 0.1 * dy + 0.16 * side * dx];
    disc(ex, ey, 0.11, { fill: "white" });
    disc(ex + 0.04 * dx, ey + 0.04 * dy, 0.06, { fill: "black" });
  }
}

openBoard(cols, rows, { colour: "#e6efd9", border: 0.12 });
onKeys(Object.fromEntries(Object.entries(STEPS).map(([key, direction]) => [key, () => step(direction)])));
startGame({
  state: { snake, eaten: [], taken: [] },
  draw: drawBoard,
  won: (state) => on([exit], state.snake[0]) === 0,
  lost: (state) => Object.values(STEPS).every((direction) => !ahead(state, direction)),
  score: (state) => (state.eaten.length + (on([exit], state.snake[0]) === 0 ? 1 : 0)) / (apples.length + 1),
  label: (state) => `Apples ${state.eaten.length}/${apples.length}`,
});
