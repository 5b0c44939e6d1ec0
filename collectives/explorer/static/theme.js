"use strict";

/* The theme of a page: one that the reader has chosen, or with "system" that of the page around it
   or of the system. */

const THEMES = ["system", "light", "dark"];

function themeAfter(theme) {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
}

/* Show a theme; `around` is that of the page that has this one in a frame, or "". */
function showTheme(theme, around) {
  const root = document.documentElement;
  const shown = theme === "system" ? around : theme;
  if (shown) root.dataset.theme = shown;
  else delete root.dataset.theme;
}

/* Call a function with the theme of the page around this one, whenever that tells it. */
function followTheme(told) {
  window.addEventListener("message", (event) => {
    const theme = event.data && event.data.theme;
    if (event.source === window.parent && ["light", "dark"].includes(theme)) told(theme);
  });
}
