"use strict";
// Before anything is drawn, so that a page does not flash in the other theme.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("weir-theme"); } catch { /* a browser without storage has the system's */ }
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
