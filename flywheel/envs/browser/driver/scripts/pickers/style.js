// How the pickers look: like those of the browser.
const style = document.createElement("style");
style.textContent = `
  html, body { margin: 0; height: 100%; overflow: hidden; background: #fff; cursor: default; user-select: none; }
  #picker { position: absolute; box-sizing: border-box; overflow: hidden; border: 1px solid #767676; background: #fff;
    color: #101010; font: 12px sans-serif; outline: none; }
  .rows { overflow: hidden auto; }
  .row { padding: .25em .35em; min-height: 1.2em; line-height: 1.2; white-space: pre; overflow: hidden; }
  .row.in { padding-inline-start: 1.6em; }
  .row.group { font-weight: bold; }
  .row.off { color: #8a8a8a !important; }
  .row.on { background: #1967d2 !important; color: #fff !important; }
  .line { height: 1px; margin: .3em 0; background: #aaa; }
  .side { display: flex; }
  .calendar { padding: 8px; width: 220px; }
  .head, .foot { display: flex; align-items: center; gap: 6px; height: 30px; padding: 0 6px; }
  .head b { flex: 1; }
  .head .step { width: 28px; height: 28px; line-height: 28px; text-align: center; font-size: 16px; }
  .foot { justify-content: space-between; color: #0074cc; }
  .grid { display: grid; text-align: center; line-height: 27px; }
  .cell { border: 1px solid transparent; border-radius: 2px; height: 27px; }
  .cell.pale { color: #777; } .cell.off { color: #bbb; } .cell.today { border-color: #767676; }
  .cell.on { background: #0075ff; color: #fff; font-weight: bold; }
  .cell.at { outline: 2px solid #101010; outline-offset: -2px; }
  .times { display: flex; padding: 4px; gap: 2px; }
  .column { width: 52px; height: 244px; overflow: hidden auto; text-align: center; font-size: 14px; line-height: 36px; }
  .column .cell { height: 34px; line-height: 34px; }
  .colour { width: 232px; }
  .square { position: relative; height: 138px; background:
    linear-gradient(transparent, #000), linear-gradient(90deg, #fff, transparent), var(--hue); }
  .square i, .hue i { position: absolute; width: 12px; height: 12px; margin: -7px; border: 2px solid #fff;
    border-radius: 50%; box-shadow: 0 0 2px #000; }
  .hue { position: relative; margin: 14px 16px; height: 12px;
    background: linear-gradient(90deg, #f00, #ff0, #0f0, #0ff, #00f, #f0f, #f00); }
  .hue i { top: 6px; }
  .channels { display: flex; gap: 6px; padding: 0 16px 10px; align-items: center; }
  .channels .chip { width: 30px; height: 30px; border-radius: 50%; border: 1px solid #aaa; flex: none; }
  .channels label { flex: 1; text-align: center; }
  .channels input { width: 100%; box-sizing: border-box; text-align: center; font: inherit; height: 26px; border: 1px solid #767676; }
  .swatches { display: flex; flex-wrap: wrap; gap: 4px; padding: 0 16px 10px; }
  .bubble { display: flex; gap: 8px; align-items: center; max-width: 260px; padding: 8px; font-size: 13px; }
  .bubble b { flex: none; width: 20px; line-height: 20px; text-align: center; background: #ed6f1e; color: #fff; }
  .swatches i { width: 20px; height: 20px; border: 1px solid #767676; }`;
document.head.append(style);
